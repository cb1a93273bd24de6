const spell = us => { const [unit, name] = [[8.64e10, "day"], [3.6e9, "hour"], [6e7, "minute"], [1e6, "second"]].find(([unit]) => us >= unit); return us === unit ? name : `${us / unit} ${name}s`; };
const position = place => [Math.floor(place / 2 ** 24), Math.floor(place / 16) % 2 ** 20];
const placed = place => { const [sequence, index] = position(place); return `log ${sequence}, record ${index}`; };
const ran = new Set(data.jobs.map(job => job.name));
const part = name => data[name] ?? {};
const has = list => Array.isArray(list) && list.length > 0;
const members = [...new Set(data.histories.map(history => history.observer))];
/* Which history it is about, where its observer has several; in a plot so much of it as tells them apart. */
const ownHistories = observer => data.histories.filter(each => each.observer === observer).map(each => String(each.history));
const several = each => each.history !== undefined && ownHistories(each.observer).length > 1;
const named = each => several(each) ? `${each.observer}, history ${each.history}` : each.observer;
function labelled(each) {
  if (!several(each)) return each.observer;
  const own = ownHistories(each.observer), longest = Math.max(...own.map(name => name.length));
  let length = Math.min(4, longest);
  while (length < longest && new Set(own.map(name => name.slice(0, length))).size < own.length) length++;
  return `${each.observer} · ${String(each.history).slice(0, length)}`;
}

const member = each => element("td", {class: "member"}, several(each) ? [`${each.observer}, `, element("span", {}, `history ${each.history}`)] : each.observer);
const none = (box, why) => box.append(element("div", {class: "none"}, why));
const missing = job => ran.has(job) ? "The logs do not tell." : `Not looked at: the job ${job} did not run.`;

/* ---- what was found ---- */
function verdict() {
  const {errors, warnings} = data.findings, found = errors + warnings;
  const decisions = sum(data.histories.map(history => history.transactions));
  const scope = `${many(decisions, "decision")} of ${many(members.length, "member")}`;
  const jobs = listed([...ran]);
  const headline = errors ? many(errors, "error") + (warnings ? `, ${many(warnings, "warning")}` : "")
    : warnings ? many(warnings, "warning") : ran.size ? "No findings" : "Nothing was looked at";
  const proved = `${scope} proved again`;
  const text = errors ? `The logs are not what the rule gives, or not what was written: ${scope} were looked at.`
    : warnings ? `No data are in doubt: ${ran.has("verify") ? proved : `${scope} looked at`}. Something was slower than it had to be, or is odd.`
    : !ran.size ? `No job ran over ${scope}.`
    : ran.has("verify") ? `${proved}, each from the records before it.` : `${scope} were looked at by ${jobs}; the decisions themselves were not derived again.`;
  const mark = found || !ran.size ? shape("path", {d: "M24 13v15M24 34.5v.5", fill: "none", stroke: "currentColor", "stroke-width": 4, "stroke-linecap": "round"})
    : shape("path", {d: "M14.5 24.5l7 7 13-14", fill: "none", stroke: "currentColor", "stroke-width": 4, "stroke-linecap": "round", "stroke-linejoin": "round"});
  const tone = errors ? "bad" : warnings || !ran.size ? "odd" : "good";
  main.append(element("header", {}, element("h1", {}, "groupcert audit"), element("span", {id: "when"}, `${moment(data.started_us)} UTC`)),
    element("div", {id: "verdict", class: `verdict ${tone}`},
    shape("svg", {viewBox: "0 0 48 48", "aria-hidden": "true"}, shape("circle", {cx: 24, cy: 24, r: 21.5, fill: "none", stroke: "currentColor", "stroke-width": 3}), mark),
    element("div", {}, element("b", {}, headline), element("p", {}, text))));
  document.title = `${headline}: audit of ${listed(members)}`;
}
function figures() {
  const observers = part("verify").observers ?? [], all = name => sum(observers.map(each => each[name]));
  const decided = all("certified") + all("conflict") + all("too_old") + all("refused");
  const entries = [];
  if (decided) {
    entries.push([count(all("certified")), "certified", percent(all("certified") / decided) + " of all decisions"]);
    entries.push([count(all("conflict")), "conflicts", percent(all("conflict") / decided) + ", the first committer won"]);
    entries.push([count(all("stamps_checked")), "stamps derived again", "last_committed and sequence_number"]);
  } else entries.push([count(sum(data.histories.map(h => h.transactions))), "decisions", many(data.histories.length, "history", "histories")]);
  const widths = (part("profile").parallelism ?? []).filter(each => each.mean);
  if (widths.length) entries.push([`${fixed(Math.max(...widths.map(each => each.mean)), 1)} ×`, "could run at once", "on average, workers without limit"]);
  const lags = (part("apply").observers ?? []).flatMap(each => each.lag?.p95_us ?? []).filter(value => value !== null);
  if (lags.length) entries.push([time(largest(lags)), "largest p95 lag", "from decision until visible"]);
  const chains = part("proof").observers ?? [];
  if (chains.length) entries.push([percent(sum(chains.map(c => c.chained)) / (sum(chains.map(c => c.rows)) || 1)), "of the rows chained", `${many(sum(chains.map(c => c.checkpoints)), "checkpoint")} compared`]);
  main.append(tiles(entries));
}
function findings() {
  const {by_code: codes, first} = data.findings;
  if (!codes.length) return;
  const total = data.findings.errors + data.findings.warnings;
  const box = section("findings", "Findings", first.length < total
    ? `${count(first.length)} of ${count(total)} are shown, some of each code; tables/findings has more of them.` : "All of them, in the order of their places.");
  codes.forEach((code, i) => {
    const mine = first.filter(finding => finding.code === code.code);
    const details = element("details", {open: i === 0 || first.length <= 24}, element("summary", {}, element("span", {class: `pill ${code.severity}`}, code.severity),
      element("code", {}, code.code), element("em", {}, code.meaning), element("b", {}, count(code.count))));
    for (const finding of mine) details.append(element("div", {class: `finding ${finding.severity}-edge`},
      element("b", {}, `log ${finding.log_sequence}, record ${finding.log_index}`),
      element("span", {}, ` ${!finding.kind || finding.kind === "transaction" ? "" : `· ${finding.kind.replaceAll("_", " ")} `}· at ${finding.observer ? named(finding) : "all members"}`),
      element("dl", {}, ["expected", "found", "witness"].filter(name => finding[name]).map(name => [element("dt", {}, name), element("dd", {}, finding[name])]))));
    box.append(details);
  });
}

/* ---- histories ---- */
function histories() {
  const box = section("histories", "Histories", "What each member has recorded, by place in the total order. One that begins late or ends early is no finding: a member joined, or left.");
  const rows = data.histories;
  if (!has(rows)) return none(box, "There are none.");
  const low = Math.min(...rows.map(row => position(row.first_place)[0])), high = Math.max(...rows.map(row => position(row.last_place)[0]));
  const notes = row => [row.begins_late ? "begins late" : "", row.ends_early ? "ends early" : ""].filter(Boolean).join(", ");
  plot(box, "timeline", "Where each history begins and ends", rows.length * 30 + 46, (svg, width, height) => {
    const left = Math.min(Math.max(...rows.map(row => wide(labelled(row)))) + 14, width * .3), right = width - 8, bottom = height - 42;
    const x = value => left + (right - left) * (high > low ? (value - low) / (high - low) : 0);
    const messages = {...axis({from: low, to: high, name: "message of the log", format: count}), ticks: wanted => linearTicks(low, high, wanted).filter(Number.isInteger)};
    rows.forEach((row, i) => {
      const [from, to] = [x(position(row.first_place)[0]), high > low ? x(position(row.last_place)[0]) : right], y = i * 30 + 4;
      svg.append(shape("text", {x: 0, y: y + 15, style: {fill: "var(--ink)", "font-size": "13px"}}, labelled(row)),
        shape("rect", {x: left, y, width: right - left, height: 20, rx: 5, style: {fill: "var(--track)"}}),
        shape("rect", {class: "history", x: from, y, width: Math.max(to - from, 3), height: 20, rx: 5, style: {fill: "var(--series-1)", opacity: .82},
          "data-tip": `${named(row)}: ${placed(row.first_place)} to ${placed(row.last_place)}\n${many(row.rows, "row")}, ${many(row.transactions, "decision")}${row.first_us ? `\n${moment(row.first_us)} to ${moment(row.last_us)}` : ""}`}));
      const note = notes(row);
      if (note) { const room = from - left > wide(note) + 12 ? [from - 8, "end"] : right - to > wide(note) + 12 ? [to + 8, "start"] : null;
        if (room) svg.append(shape("text", {x: room[0], y: y + 14, "text-anchor": room[1]}, note)); }
    });
    drawHorizontal(svg, messages, left, right, bottom);
  });
  const left = [...(part("verify").observers ?? [])];
  const told = rows.map(row => { const i = left.findIndex(each => each.observer === row.observer); return i < 0 ? {} : left.splice(i, 1)[0]; });
  box.append(table(["member", {name: "source", text: true}, "rows", "decisions", "certified", "conflict", "too old", "refused", "stamps checked", {name: "", text: true}],
    rows.map((row, i) => [member(row), row.source.replaceAll("_", " "), row.rows, row.transactions, told[i].certified, told[i].conflict, told[i].too_old, told[i].refused, told[i].stamps_checked, notes(row)])));
}

/* ---- agreement, isolation, proof ---- */
function checks(box, entries) {
  box.append(element("ul", {class: "checks"}, entries.map(([fine, text, detail]) => element("li", {},
    element("span", {class: `pill ${fine === null ? "quiet" : fine ? "fine" : "error"}`, style: {padding: "0 6px"}}, fine === null ? "–" : fine ? "✓" : "✕"), element("span", {}, text), element("span", {}, detail)))));
}
function trust() {
  const box = section("trust", "Proof", "Whether the members agree, what no reader may have seen, and whether the logs are those that were written.");
  const [one, other] = columns(box);
  const agree = part("agree"), isolation = part("isolation"), proof = part("proof");
  titled(one, "Members against each other", has(agree.pairs) ? `${many(agree.compared ?? 0, "record")} compared, at ${many(agree.places ?? 0, "place")}.` : "");
  if (has(agree.pairs)) checks(one, agree.pairs.map(pair => [pair.places ? !pair.differing : null, [pair.one, pair.other].map((observer, i) => named({observer, history: pair.histories?.[i]})).join(" and "),
    !pair.places ? "nothing in common" : pair.differing ? `${count(pair.differing)} of ${count(pair.places)} differ` : `${many(pair.places, "place")} alike`]));
  else none(one, ran.has("agree") && members.length < 2 ? "There is one member only." : missing("agree"));
  titled(other, "Isolation", has(isolation.anomalies) ? `${many(isolation.transactions, "transaction")}, ${isolation.with_read_set ? count(isolation.with_read_set) : "none"} of them with the items that they read.${isolation.unsearched ? ` Cycles of ${many(isolation.unsearched, "transaction")} were not looked for: too many, or too far back.` : ""}` : "");
  if (has(isolation.anomalies)) checks(other, isolation.anomalies.map(each => [each.found ? false : each.checked && !isolation.unsearched ? true : null, each.name,
    each.found ? count(each.found) : !each.checked ? "nothing to look at" : isolation.unsearched ? "none where looked for" : "none"]));
  else none(other, missing("isolation"));
  titled(box, "The chain of each history", has(proof.observers) ? "Each row is tied to the one before it. Checkpoints are what members told the group about their chains, digests what they told about their decisions." + (sum(proof.observers.map(each => each.checkpoints_behind)) ? " Checkpoints behind the end of a history, which ends early, are only counted." : "") : "");
  if (!has(proof.observers)) return none(box, missing("proof"));
  const digests = proof.observers.some(each => each.digests !== undefined), behind = proof.observers.some(each => each.checkpoints_behind);
  box.append(table(["member", "rows in the chain", "verified up to", "checkpoints", ...(behind ? ["behind the end"] : []), ...(digests ? ["digests"] : [])], proof.observers.map(each => [member(each),
    barred(`${count(each.chained)} of ${count(each.rows)}`, each.chained / (each.rows || 1), each.chained < each.rows ? "var(--bad)" : "var(--good)"),
    each.last_place === null || each.last_place === undefined ? "–" : placed(each.last_place), each.checkpoints, ...(behind ? [each.checkpoints_behind ?? 0] : []), ...(digests ? [each.digests] : [])])));
}

/* ---- decisions and conflicts ---- */
const verdicts = [["certified", "certified", "var(--series-1)"], ["conflict", "conflict", "var(--series-2)"], ["too_old", "too old", "var(--series-6)"], ["refused", "refused", "var(--series-5)"]];
function decisions() {
  const box = section("decisions", "Decisions over time");
  const {width_us: step, parts: spans = []} = part("profile").conflicts?.by_time ?? {};
  if (!spans.length) return none(box, missing("profile"));
  const begin = spans[0].begin_us, end = spans.at(-1).begin_us + step, long = spell(step), of = new Map(spans.map(span => [span.begin_us, span]));
  const at = Array.from({length: Math.round((end - begin) / step)}, (_, i) => begin + i * step), values = name => at.map(us => of.get(us)?.[name] ?? 0);
  const totals = at.map((_, i) => sum(verdicts.map(([name]) => values(name)[i])));
  const x = {kind: "date", from: begin, to: end, at, text: us => `${moment(us).slice(0, step < 6e7 ? 19 : 16)} UTC, ${/^\d/.test(long) ? long : `one ${long}`}`};
  const series = (list, values) => list.map(([name, words, color]) => ({name: words, kind: "bar", look: {color}, values: values(name)}));
  titled(box, `Decisions each ${long}`);
  new Chart(box, {id: "by-time", label: `Decisions each ${long}`, x, y: {}, series: series(verdicts, values)});
  titled(box, "Share that was not certified");
  const lost = series(verdicts.slice(1), name => values(name).map((value, i) => value / (totals[i] || 1)));
  if (!largest(lost.map(each => largest(each.values)))) return none(box, "Everything was certified.");
  new Chart(box, {id: "lost-by-time", label: `Share of decisions that were not certified, each ${long}`, height: 150, x, y: {format: percent}, series: lost});
}
function keyed(entry) { return entry.key ? element("code", {}, entry.key) : element("code", {}, entry.item === null || entry.item === undefined ? "without a name" : `item ${entry.item}`); }
function conflicts() {
  const box = section("conflicts", "Conflicts", "Who lost against whom, and over what. The transaction that was certified first won.");
  const told = part("profile").conflicts;
  if (!told) return none(box, missing("profile"));
  if (!told.total) none(box, "There are no conflicts.");
  else {
    const [one, other] = columns(box);
    if (has(told.by_pair)) pairs(one, told.by_pair);
    titled(other, "By table");
    if (has(told.by_table)) other.append(table(["table", "transactions", "conflicts"], told.by_table.slice(0, 12).map(each => [element("td", {class: "text key"}, element("code", {}, each.table || "without a name")), each.transactions,
      barred(count(each.conflicts), each.conflicts / largest(told.by_table.map(t => t.conflicts)), "var(--series-2)")])));
    else none(other, "Tables are not known: the logs have no keys in words.");
  }
  const [one, other] = columns(box);
  if (has(told.by_key)) {
    titled(one, "Keys in conflict");
    one.append(table(["key", "conflicts"], told.by_key.slice(0, 12).map(each => [element("td", {class: "text key"}, keyed(each)), barred(count(each.conflicts), each.conflicts / told.by_key[0].conflicts, "var(--series-2)")])));
  }
  const hot = part("profile").hot_items;
  if (has(hot)) {
    titled(other, "Hot items");
    other.append(table(["key", "writers", "readers", "conflicts"], hot.slice(0, 12).map(each => [element("td", {class: "text key"}, keyed(each)), barred(count(each.writers), each.writers / largest(hot.map(h => h.writers)), "var(--series-1)"), each.readers, each.conflicts])));
  }
}
function pairs(box, list) {
  const names = [...new Set(list.flatMap(pair => [pair.loser, pair.winner]))].sort(), most = largest(list.map(pair => pair.conflicts));
  const of = new Map(list.map(pair => [JSON.stringify([pair.loser, pair.winner]), pair.conflicts]));
  titled(box, "By member", "A row's member lost against a column's.");
  const heated = (loser, winner) => {
    const value = of.get(JSON.stringify([loser, winner])) ?? 0, style = value ? {background: `rgb(var(--heat) / ${(.1 + .8 * value / most).toFixed(2)})`} : {};
    return element("td", {class: value ? "pair" : "pair zero", style, "data-tip": `${loser} lost ${many(value, "time")} against ${winner}`}, count(value));
  };
  box.append(element("div", {id: "pairs"}, table(["", ...names], names.map(loser => [loser, ...names.map(winner => heated(loser, winner))]))));
}

/* ---- parallelism ---- */
/* Lines and areas over buckets of time, or of transactions; where one value is far above another, on a logarithmic axis. */
function overTime(box, id, label, {unit, begin, step, series, format, height, logarithmic}) {
  const length = largest(series.map(each => each.values.length)), kind = unit !== "time" ? "linear" : begin > 1e14 ? "date" : "elapsed";
  const x = {kind, from: begin, to: begin + length * step, at: Array.from({length}, (_, i) => begin + i * step)};
  if (kind === "linear") Object.assign(x, {name: "transactions", text: number => `transaction ${count(Math.round(number))}`});
  if (kind === "elapsed") Object.assign(x, {name: "since the beginning", text: us => `after ${time(us - begin)}`});
  new Chart(box, {id, label, height, x, y: {kind: logarithmic ? "log" : "linear", format}, series: series.map(({color, dash, thin, kind = "step", ...each}) => ({...each, kind, look: {color, dash, thin}}))});
}
function parallelism() {
  const box = section("parallelism", "Parallelism", "What could have run at once by the stamps of the log.");
  const told = part("profile");
  if (!ran.has("profile")) return none(box, missing("profile"));
  const measured = !/^(one|unit|equal|none|count)/.test(String(told.durations ?? "")), long = value => measured ? time(value) : count(value);
  titled(box, "Width over time", `How many transactions can run at once with workers without limit${told.observer ? `, by the log of ${named(told)}` : ""}. ${measured ? "Durations are those that the applier took." : "No durations are known: each transaction counts as one."}`);
  if (told.width && has(told.width.mean)) overTime(box, "width", "Width over time", {unit: told.width.unit, begin: told.width.begin ?? 0, step: told.width.bucket || 1, format: short,
    series: [{name: "most", values: told.width.max, color: "var(--series-3)", thin: true}, {name: "mean", values: told.width.mean, color: "var(--series-1)", kind: "area"}]});
  else none(box, missing("profile"));
  const most = (each, text) => each.forced_cuts ? `≤ ${text}` : text, least = (each, text) => each.forced_cuts ? `≥ ${text}` : text;
  if (has(told.parallelism)) box.append(table(["member", "transactions", "epochs", measured ? "work" : "work, transactions", measured ? "critical path" : "critical path, transactions", "mean width", "widest"], told.parallelism.map(each =>
    [member(each), each.transactions, most(each, count(each.epochs)), long(each.work), most(each, long(each.critical_path)), least(each, fixed(each.mean ?? 0, 2)), each.forced_cuts ? `about ${count(each.width_max)}` : each.width_max])));
  const cut = sum((told.parallelism ?? []).map(each => each.forced_cuts));
  if (cut) none(box, `Cut ${many(cut, "time")} where not everything is waited for, as too many transactions hang together: ≤ and ≥ are bounds.`);
  const mine = (told.parallelism ?? []).find(each => each.observer === told.observer && each.history === told.history);
  sample(box, told);
  windows(box, told, mine, long);
}
function sample(box, told) {
  if (!told.sample || !told.whatif) return;
  titled(box, "Speed-up by workers", `${many(told.sample.transactions, "transaction")} of ${told.observer ? named(told) : "one history"}, ${percent(told.sample.share)} of those that an applier executed, are a trace beside this page. This command schedules it under every scheme:`);
  box.append(element("p", {}, element("code", {id: "whatif"}, told.whatif)));
}
function windows(box, told, mine, long) {
  const [one, other] = columns(box);
  const w = told.windows;
  titled(one, "What collections cost", "A collection closes the applier's window: what follows waits for all before it.");
  if (w && w.collections) {
    const most = Math.max(w.critical_path ?? 0, w.critical_path_without ?? 0) || 1;
    if (w.critical_path) one.append(levels("windows", [{name: "critical path", share: w.critical_path / most, color: "var(--series-1)", text: `${mine?.forced_cuts ? "≤ " : ""}${long(w.critical_path)}`},
      {name: "without windows", share: (w.critical_path_without ?? 0) / most, color: "var(--series-3)", text: `${w.forced_cuts ? "≤ " : ""}${long(w.critical_path_without ?? 0)}`}]));
    one.append(element("ul", {class: "facts"}, element("li", {}, element("b", {}, count(w.collections)), ` collections purged `, element("b", {}, count(w.purged_items)), " items"),
      element("li", {}, element("b", {}, count(w.closed)), " of them closed the window"), element("li", {}, element("b", {}, `${w.forced_cuts ? "≥ " : ""}${count(w.waiting_for_window)}`), " transactions waited for a window, not for an item")));
  } else none(one, "There were no collections.");
  const bare = told.without_write_set;
  titled(other, "Transactions without write set", "They run alone: everything before them is waited for, and everything after them waits.");
  if (bare && bare.total) {
    if (has(bare.by_origin)) other.append(levels("without-write-set", bare.by_origin.slice(0, 12).map(each => ({name: each.origin || "unknown", share: each.transactions / largest(bare.by_origin.map(o => o.transactions)), color: "var(--series-6)", text: count(each.transactions)}))));
    other.append(element("ul", {class: "facts"}, element("li", {}, element("b", {}, count(bare.total)), ` of them, ${percent(bare.share ?? 0)} of all`),
      bare.critical_path_share === null || bare.critical_path_share === undefined ? null : element("li", {}, element("b", {}, `${mine?.forced_cuts ? "≥ " : ""}${percent(bare.critical_path_share)}`), " of the critical path")));
  } else none(other, "There are none.");
}

/* ---- appliers ---- */
function appliers() {
  const box = section("appliers", "Appliers", "How long a transaction took from its decision until it was visible, and how much of what could run at once did.");
  const told = part("apply");
  if (!has(told.observers)) none(box, ran.has("apply") ? "The logs do not say when transactions were executed." : missing("apply"));
  (told.observers ?? []).forEach((each, i) => {
    const least = each.forced_cuts ? "at least " : "", most = each.forced_cuts && each.possible_mean < each.workers ? "at most " : "";
    titled(box, named(each), `${many(each.transactions, "transaction")} by ${many(each.workers, "worker")}; ${percent(each.overlapping ?? 0)} of them ran beside another. On average ${fixed(each.running_mean ?? 0)} ran at once where ${least}${fixed(each.possible_mean ?? 0)} could: ${most}${percent(each.used_share ?? 0)} of what these workers could have made of it.`);
    const [one, other] = columns(box);
    const lag = each.lag ?? {}, running = each.running ?? {};
    const positive = (lag.max_us ?? []).filter(value => value > 0), middle = (lag.p50_us ?? []).filter(value => value > 0);
    one.append(element("p", {style: {"font-size": "13px", margin: "6px 0 2px"}}, "Lag"));
    if (positive.length) overTime(one, `lag-${i}`, `Lag of ${named(each)}`, {unit: "time", begin: lag.begin_us, step: lag.bucket_us || 1, format: time, height: 190, logarithmic: middle.length > 0 && largest(positive) > 30 * Math.min(...middle),
      series: [{name: "largest", values: lag.max_us, color: "var(--series-4)", thin: true}, {name: "p95", values: lag.p95_us, color: "var(--series-3)"}, {name: "p50", values: lag.p50_us, color: "var(--series-1)"}]});
    else none(one, "No times are known.");
    other.append(element("p", {style: {"font-size": "13px", margin: "6px 0 2px"}}, "Running at once"));
    if (has(running.mean)) overTime(other, `running-${i}`, `Transactions that ${named(each)} ran at once`, {unit: "time", begin: running.begin_us, step: running.bucket_us || 1, format: value => trimmed(value, 2), height: 190,
      series: [{name: "most", values: running.max, color: "var(--series-3)", thin: true}, {name: "mean", values: running.mean, color: "var(--series-1)", kind: "area"},
        ...(each.possible_mean && each.possible_mean <= 3 * Math.max(largest(running.max), 1) ? [{name: "possible", values: running.mean.map(() => each.possible_mean), color: "var(--series-4)", dash: "5 4"}] : [])]});
    else none(other, "No times are known.");
    const span = (running.bucket_us ?? 0) * (running.mean?.length ?? 0);
    if (has(each.worker_busy) && span) {
      box.append(element("p", {style: {"font-size": "13px", margin: "14px 0 8px"}}, "Share of the time in which each worker executed"));
      box.append(levels(`workers-${i}`, each.worker_busy.slice(0, 16).map(worker => ({name: worker.worker === null || worker.worker === undefined ? "nobody named" : `worker ${worker.worker}`, share: worker.busy_us / span, color: "var(--series-1)",
        text: percent(worker.busy_us / span), tip: `${time(worker.busy_us)} of ${time(span)}\n${many(worker.transactions, "transaction")}`}))));
    }
  });
  if (has(told.skipped)) none(box, `Not looked at, as their logs do not say what ran when: ${listed(told.skipped)}.`);
}

/* ---- how it was computed ---- */
function computed() {
  const box = section("computed", "How it was computed", `By PySpark jobs that share nothing with the certifier but the log's schema, in ${time(1e6 * data.seconds)} altogether.`);
  if (data.jobs.length) box.append(levels("jobs", data.jobs.map(job => ({name: job.name, share: job.seconds / largest(data.jobs.map(j => j.seconds)), color: "var(--series-8)",
    text: `${trimmed(job.seconds, 1)} s`, tip: `${many(job.findings, "finding")}`}))));
  box.append(element("ul", {class: "facts"}, element("li", {}, `Spark ${data.spark.version}, Java ${data.spark.java}, master `, element("code", {}, data.spark.master)),
    element("li", {}, "Logs: ", data.paths.map((path, i) => [i ? ", " : "", element("code", {}, path)]))));
}

verdict();
figures();
for (const part of [findings, histories, trust, decisions, conflicts, parallelism, appliers, computed]) part();
navigation([...main.querySelectorAll("section")]);
document.documentElement.dataset.drawn = "yes";
