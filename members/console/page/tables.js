// The tables below the charts: conflicts, hot rows, PostgreSQL servers, the applier, certification info, flow control, settings.

import { byId, element, keepChildren, keepFacts, keepRows, setAttribute, setClass, setText } from "./elements.js";
import { clock, count, setting, span, text } from "./units.js";

let showsAll = false;

export function drawTables(document_, nowMs) {
  drawHotRows(document_.hot_rows, nowMs);
  drawConflicts(document_, nowMs);
  drawServers(document_.servers);
  drawApplier(document_.applier, document_.observer);
  drawCertification(document_.certification, document_.observer);
  drawFlowControl(document_.flow_control);
  drawSettings(document_.settings);
}

const rowName = ({ key, item }) => key || `item ${item}`;

function drawHotRows({ rows, since_us }, nowMs) {
  const most = Math.max(...rows.map((each) => each.conflicts), 1);
  const since = `since ${clock(since_us / 1000)}`;
  setText(byId("hot-text"), rows.length ? `over which most transactions conflicted, ${since}` : "No conflict yet.");
  byId("hot").hidden = !rows.length;
  keepChildren(
    byId("hot").tBodies[0],
    rows,
    (each) => each.row.item,
    () => element("tr", element("th.mono"), element("td", element("span.bar", element("i")), element("b"))),
    (child, each) => {
      const [name, counted] = child.children;
      setText(name, rowName(each.row));
      setAttribute(name, "title", `last conflict ${span(nowMs - each.last_us / 1000)} ago`);
      counted.firstElementChild.firstElementChild.style.width = `${(100 * each.conflicts) / most}%`;
      const least = each.conflicts_min < each.conflicts ? `${text(count(each.conflicts_min, "", "")).trim()} to ` : "";
      setText(counted.lastElementChild, least + text(count(each.conflicts, "", "")).trim());
    },
  );
}

function drawConflicts({ conflicts, transactions }, nowMs) {
  const total = transactions.certified + transactions.conflict + transactions.too_old + transactions.refused;
  const lost = [
    text(count(transactions.conflict, "conflict")),
    `${text(count(transactions.too_old, "", "")).trim()} too old`,
    `${text(count(transactions.refused, "", "")).trim()} refused`,
  ].join(", ");
  setText(byId("conflicts-text"), `Of ${text(count(total, "transaction"))} of the group: ${lost}. The first committer wins.`);
  byId("conflicts").hidden = !conflicts.length;
  keepRows(
    byId("conflicts"),
    ["when", "row", "won", "lost"],
    conflicts.map((each) => ({
      key: `${each.log_sequence}/${each.loser_transaction_id}/${each.row.item}`,
      cells: [
        { text: clock(each.at_us / 1000), title: `${span(nowMs - each.at_us / 1000)} ago` },
        { text: rowName(each.row), mono: true, title: `item ${each.row.item}` },
        {
          text: `${each.winner_member}, ${shortGtid(each.winner_gtid)}`,
          title: `${each.winner_gtid}, version ${each.winner_version}, message ${each.winner_log_sequence} of the log`,
        },
        {
          text: `${each.loser_member}, ${each.loser_transaction_id.slice(0, 8) || "no id"}`,
          title: `transaction ${each.loser_transaction_id || "without an id"}, with a snapshot of version ` +
            `${each.loser_snapshot_version}, message ${each.log_sequence} of the log`,
        },
      ],
    })),
  );
}

// The last part of a GTID's source, which tells groups apart, and its number.
const shortGtid = (gtid) => gtid.replace(/^.*-[0-9a-f]{8}([0-9a-f]{4}:)/, "…$1");

const SERVER_COLUMNS =
  ["member", "server", "takes writes", "version", "behind", "waits for", "oldest transaction", "not the group's", "tables"];

// A member has transactions of its own open for less.
const SHOWN_SECONDS_MIN = 1;

function drawServers(servers) {
  byId("servers-card").hidden = !servers.length;
  const writing = servers.filter((each) => each.answers && !each.out_of_group).length;
  setText(byId("servers-text"), `They keep members' rows. ${writing} of ${servers.length} take writes.`);
  keepRows(
    byId("servers"),
    SERVER_COLUMNS,
    servers.map((each) => ({
      key: each.member,
      marked: !each.answers || each.out_of_group || each.skipped_transactions || each.astray_sequences.length,
      cells: [
        each.member,
        each.server,
        each.answers ? (each.out_of_group ? `no: ${each.out_of_group}` : "yes") : "its member does not answer",
        count(each.answers ? each.version : null, "", ""),
        text(count(each.answers ? each.behind_transactions : null, "transaction")),
        each.waits_for ? `${each.waits_for}, for ${span(1000 * each.waits_seconds)}` : "nobody",
        {
          text: each.oldest_transaction_seconds >= SHOWN_SECONDS_MIN
            ? `${span(1000 * each.oldest_transaction_seconds)}, ${each.oldest_transaction}` : "a short one, or none",
          title: each.held_snapshot_version ? `the group remembers what came after version ${each.held_snapshot_version}` : null,
        },
        ownOf(each),
        { text: text(count(each.attached_tables.length, "table")), title: each.attached_tables.join(", ") || null },
      ],
    })),
  );
}

// What a server has for itself, or lacks: why its rows may differ from those of others.
function ownOf(server) {
  return [
    server.skipped_transactions ? `${text(count(server.skipped_transactions, "transaction"))} left out` : "",
    server.skipped_rows ? `${text(count(server.skipped_rows, "row"))} of others without a table` : "",
    server.rows_outside ? `${text(count(server.rows_outside, "row"))} in tables that are not attached` : "",
    server.astray_sequences.length ? `sequences astray: ${server.astray_sequences.join(", ")}` : "",
  ].filter(Boolean).join("; ") || "nothing";
}

function drawApplier(applier, observer) {
  const pending = applier.pending_transactions
    ? `${text(count(applier.pending_transactions, "transaction"))} are to be applied`
    : "nothing is left to apply";
  const state = applier.error ? `${applier.state}: ${applier.error}` : applier.state;
  setText(byId("applier-text"), `At ${observer}: ${state}; ${pending}. It waits for: ${applier.waits_for || "nothing"}.`);
  keepRows(
    byId("workers"),
    ["worker", "state", "waits for", "has or had", "executed"],
    applier.workers.map((each) => ({
      key: each.worker,
      marked: each.state === "retrying",
      cells: [
        String(each.worker),
        each.state,
        each.waits_for,
        { text: each.gtid ? shortGtid(each.gtid) : "–", title: each.gtid || null, mono: true },
        count(each.executed_transactions, "transaction"),
      ],
    })),
  );
  byId("workers").hidden = !applier.workers.length;
  const holds = Object.entries(applier.holds).map(([cause, times]) => `${cause}, ${text(count(times, "time"))}`);
  const parallel = `${applier.parallelism_mean} workers were at work in the mean`;
  setText(byId("holds"), holds.length ? `${parallel}. Transactions had to wait: ${holds.join("; ")}.` : `${parallel}.`);
}

function drawCertification(info, observer) {
  const behind = info.newest_version - info.held_at_version;
  setText(
    byId("info-text"),
    behind && info.held_by
      ? `${info.held_by} holds its collection back${info.held_why ? `: ${info.held_why}` : ""}.`
      : "Every member has executed all of it.",
  );
  keepFacts(byId("info"), [
    [`at ${observer}`, count(info.items, "item")],
    ["collected up to", `version ${text(count(info.stable_version, "", "")).trim()}`],
    ["newest", `version ${text(count(info.newest_version, "", "")).trim()}`],
    [info.held_by ? `${info.held_by} reported` : "reported", `version ${text(count(info.held_at_version, "", "")).trim()}`],
  ]);
}

function drawFlowControl(flow) {
  const now = flow.held.find((each) => each.text);
  setText(byId("flow-text"), now ? `${now.text}: ${now.member} sends less.` : "No member is held up now.");
  setClass(byId("flow-text"), "odd", now);
  keepFacts(byId("flow"), [
    ["slowest, by its last report", flow.slowest_member || "nobody"],
    ["it lags by", count(flow.slowest_lag_transactions, "transaction")],
    ["limit of the group", flow.lag_max_transactions ? count(flow.lag_max_transactions, "transaction") : "none"],
    ...flow.held.map((each) => [`${each.member} was held for`, span(each.held_ms)]),
  ]);
}

function drawSettings({ group, members, rows, not_told }) {
  const differing = rows.filter((each) => each.differs);
  const missing = not_told.length ? ` ${not_told.join(", ")} did not tell.` : "";
  const differ = differing.length
    ? `Members differ in ${differing.map((each) => each.name).join(", ")}.`
    : members.length > 1 ? "Members have the same settings." : "";
  setText(byId("settings-text"), `${differ}${missing} Shown are those that differ or are not the default.`);
  keepFacts(byId("group-settings"), Object.entries(group).map(([name, value]) => [name, setting(name, value)]));
  const head = byId("member-settings").tHead.rows[0];
  keepChildren(head, ["setting", ...members], (each) => each, (each) => element("th", each), () => {});
  const isShown = (each) => showsAll || each.differs || each.values.some((value) => value !== each.default);
  keepRows(
    byId("member-settings"),
    ["setting", ...members],
    rows.filter(isShown).map((each) => ({
      key: `${members} ${each.name}`,
      marked: each.differs,
      cells: [{ text: each.name, mono: true }, ...each.values.map((value) => setting(each.name, value))],
    })),
  );
}

// Has the button show all settings, or what matters of them.
export function onSettings(redraw) {
  const button = byId("all-settings");
  button.addEventListener("click", () => {
    showsAll = !showsAll;
    setText(button, showsAll ? "Show fewer settings" : "Show all settings");
    setAttribute(button, "aria-expanded", String(showsAll));
    redraw();
  });
}
