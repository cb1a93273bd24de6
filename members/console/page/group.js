// The picture of the group: its members over the log that orders their transactions, and who has fallen away.

import { byId, element, keepChildren, keepFacts, setAttribute, setClass, setText } from "./elements.js";
import { clock, count, rate, span, text } from "./units.js";

const SVG = "http://www.w3.org/2000/svg";
const CAUSES = {
  LEFT: "left: it was stopped, or told to leave",
  SILENT: "was expelled: nobody heard of it",
  EXPELLED: "was expelled by an operator",
};

export function drawGroup(document_, nowMs) {
  const { members, observer, primary } = document_;
  const there = members.filter((each) => !each.departed);
  const well = there.filter((each) => kindOf(each) === "good").length;
  const mode = primary ? `single-primary, ${primary} takes transactions` : "multi-primary: every member takes transactions";
  setText(byId("group-text"), `${well} of ${there.length} members are ONLINE and answer. View ${document_.view_id}, ${mode}.`);
  keepChildren(
    byId("members"),
    members,
    (each) => each.name,
    makeMember,
    (card, each) => updateMember(card, each, observer, Boolean(primary), nowMs),
  );
  drawLog(document_.log);
  drawLines();
}

// How a member is, as one of the colors: good, odd, bad, gone.
export function kindOf(member) {
  if (member.departed) return "gone";
  if (member.unreachable_since_us) return "bad";
  if (member.state === "FENCED" || member.state === "ERROR") return "bad";
  if (member.silent_ms || member.suspected) return "odd";
  return member.state === "ONLINE" ? "good" : "odd";
}

function stateOf(member) {
  if (member.departed) {
    const isHeard = member.state && !member.unreachable_since_us;
    return isHeard ? member.state : member.departed.cause === "LEFT" ? "LEFT" : "GONE";
  }
  if (member.unreachable_since_us) return "NO ANSWER";
  if (member.silent_ms || member.suspected) return "SILENT";
  return member.state || "ASKED";
}

// What there is to say of a member in words: since when it is away, and why.
function storyOf(member, nowMs) {
  const parts = [];
  const since = member.unreachable_since_us / 1000;
  if (since) parts.push(`no answer for ${span(nowMs - since)}, since ${clock(since)}`);
  if (member.silent_ms) parts.push(`silent in the log for ${span(member.silent_ms)}`);
  if (member.departed) {
    const at = member.departed.since_us / 1000;
    const cause = CAUSES[member.departed.cause] ?? "is in the view no more";
    parts.push(at ? `${cause}, ${span(nowMs - at)} ago at ${clock(at)}` : cause);
  }
  if (member.reason) parts.push(member.reason);
  if (member.recovery) {
    const { donor, text: progress } = member.recovery;
    parts.push(donor ? `copied ${progress}` : progress);
  }
  return parts.join("; ");
}

function makeMember() {
  const state = element("span.state");
  const head = element("div.head", element("i.dot"), element("b"), element("span.tag"), state);
  return element("li.member", head, element("div.address"), element("dl.facts"), element("p.story"));
}

function updateMember(card, member, observer, isSinglePrimary, nowMs) {
  const [head, address, facts, story] = card.children;
  for (const kind of ["good", "odd", "bad", "gone"]) setClass(card, kind, kindOf(member) === kind);
  setText(head.children[1], member.name);
  const tags = [];
  if (isSinglePrimary && member.role) tags.push(member.role.toLowerCase());
  if (member.without_rows) tags.push("no rows");
  if (member.name === observer) tags.push("this one");
  setText(head.children[2], tags.join(", "));
  setText(head.children[3], stateOf(member));
  setText(address, member.address);
  keepFacts(facts, [
    ["version", member.version === undefined ? "–" : count(member.version, "", "")],
    ["lag", count(member.unreachable_since_us ? null : member.lag_transactions, "transaction")],
    ["its clients", member.commits_per_second === null ? "–" : rate(member.commits_per_second)],
  ]);
  setText(story, storyOf(member, nowMs));
}

function drawLog(log) {
  const place = byId("log");
  if (!place.children.length) {
    place.append(element("div.title", element("b", "the log"), element("span")), element("ul.servers"), element("p.story"));
  }
  const [title, servers, story] = place.children;
  setClass(place, "bad", !log || !log.leader);
  setText(title.children[1], log ? `one order for all, message ${text(count(log.sequence, "", "")).trim()} read` : "not open yet");
  keepChildren(
    servers,
    log?.servers ?? [],
    (each) => each.name,
    () => element("li", element("i.dot"), element("b"), element("span")),
    (child, each) => {
      const isLeader = each.name === log.leader;
      const kind = { CURRENT: "good", SILENT: "bad", BEHIND: "odd" }[each.state] ?? "gone";
      for (const one of ["good", "odd", "bad", "gone"]) setClass(child, one, one === kind);
      setClass(child, "leader", isLeader);
      setText(child.children[1], each.name);
      const state = { CURRENT: "current", SILENT: "down or cut off", BEHIND: `lacks ${text(count(each.lag, "entry", "entries"))}` };
      setText(child.children[2], [isLeader ? "leader" : "", state[each.state] ?? "not known"].filter(Boolean).join(", "));
    },
  );
  setText(story, log ? logStory(log) : "");
}

function logStory(log) {
  const parts = [];
  if (!log.leader) parts.push(`no leader for ${span(log.leaderless_ms)}: nothing can be committed`);
  if (log.full) parts.push(`it has no space: ${log.full}`);
  if (log.problem) parts.push(log.problem);
  if (log.acknowledged_ms_ago !== null) parts.push(`took a message ${span(log.acknowledged_ms_ago)} ago`);
  parts.push(`${log.replicas === 1 ? "one server holds" : `${log.replicas} servers hold`} it`);
  parts.push(log.durable ? "every write is synced" : "not every write is synced");
  return parts.join(" · ");
}

// Lines from each member to the log.
export function drawLines() {
  const picture = byId("picture").getBoundingClientRect();
  const log = byId("log").getBoundingClientRect();
  const lines = byId("lines");
  const cards = [...byId("members").children];
  setAttribute(lines, "width", Math.round(picture.width));
  setAttribute(lines, "height", Math.round(picture.height));
  const wanted = cards.map((card) => {
    const box = card.getBoundingClientRect();
    const x = Math.round(box.left - picture.left + box.width / 2);
    const kind = card.className.split(" ").pop();
    return { x, y1: Math.round(box.bottom - picture.top), y2: Math.round(log.top - picture.top), kind };
  });
  while (lines.children.length > wanted.length) lines.lastElementChild.remove();
  while (lines.children.length < wanted.length) lines.append(document.createElementNS(SVG, "line"));
  wanted.forEach(({ x, y1, y2, kind }, index) => {
    const line = lines.children[index];
    for (const [name, value] of Object.entries({ x1: x, x2: x, y1, y2, class: kind })) setAttribute(line, name, value);
  });
}
