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

/* Of each group the history with the most decisions: every member records the same ones. One whose group is not known stands for itself. */
const longest = [...Map.groupBy(data.histories, each => each.group ?? each).values()].map(group => group.reduce((most, each) => each.transactions > most.transactions ? each : most));
/* What `verify` says of each history; its list has the same order. */
const checked = (left => new Map(data.histories.map(row => { const i = left.findIndex(each => each.observer === row.observer); return [row, i < 0 ? {} : left.splice(i, 1)[0]]; })))([...(part("verify").observers ?? [])]);

/* ---- what was found ---- */
function verdict() {
  const {errors, warnings} = data.findings, found = errors + warnings;
  const [decisions, recorded] = [longest, data.histories].map(histories => sum(histories.map(history => history.transactions)));
  const scope = `${many(decisions, "decision")} in the logs of ${many(members.length, "member")}${recorded > decisions ? ` (${count(recorded)} records of them)` : ""}`;
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
    element("div", {}, element("b", {}, headline), element("p", {}, text), continued(), todo())));
  document.title = `${headline}: audit of ${listed(members)}`;
}
/* How this audit goes on from one before. */
function continued() {
  const since = data.since;
  if (!since) return null;
  return element("p", {id: "since"}, since.whole_because ? `Audited from the beginning, not only what is new since ${since.report}: ${since.whole_because}.`
    : `${many(since.new_rows, "row")} in ${many(since.new_files, "file")} are new since ${since.report}. Findings are those of the whole history; load, conflicts and appliers those of the new rows.`);
}
/* What to do first: of the worst codes, or where the load is worth a look, from these shares and this p95 lag on. */
const CODES_TOLD = 3, ABORTED = .05, BUSY = .7, HELD = .6, SLOW_US = 1e6;
function todo() {
  const {by_code: codes, errors} = data.findings, first = text => text.match(/^.*?[.:](?= |$)/)?.[0].replace(/:$/, ".") ?? text;
  const entries = codes.slice(0, CODES_TOLD).map(each => [`#code-${each.code}`, element("code", {}, each.code), ` ${count(each.count)} × `, first(each.advice ?? each.meaning)]);
  if (codes.length > CODES_TOLD) entries.push(["#findings", `${many(codes.length - CODES_TOLD, "code")} more`, "", ""]);
  if (!codes.length) entries.push(...loaded());
  if (!entries.length) return ran.size ? element("p", {class: "todo"}, "Nothing has to be done.") : null;
  return element("div", {class: "todo"}, element("h3", {}, codes.length ? "What to do" : "Nothing has to be repaired. Worth a look:"), errors ? element("p", {}, "Keep the logs as they are, before anything else: whoever joins again begins a new history.") : null,
    element("ul", {}, entries.map(([link, name, ...words]) => element("li", {}, element("a", {href: link, onclick: () => document.querySelector(link).open = true}, name), ...words))));
}
function loaded() {
  const decided = sum(longest.map(decisionsOf)), lost = sum(longest.map(each => decisionsOf(each) - (checked.get(each).certified ?? 0))), found = [];
  const applied = part("apply").observers ?? [], {holders, hot_items: hot} = part("profile"), holder = holders?.members?.[0];
  const hottest = hot?.[0]?.conflicts ? hot[0].key ?? `item ${hot[0].item}` : null;
  if (decided && lost / decided >= ABORTED) found.push(["#conflicts", "Conflicts", `: ${percent(lost / decided)} of the decisions were to abort${hottest ? `, most over ${hottest}` : ""}.`]);
  for (const each of applied.filter(each => each.busy_share >= BUSY)) found.push(["#appliers", named(each), `: its applier executed in ${percent(each.busy_share)} of the time.`]);
  for (const each of applied.filter(each => each.lag_us?.p95 >= SLOW_US)) found.push(["#appliers", named(each), `: 5 of 100 transactions were visible ${time(each.lag_us.p95)} after their decision, or later.`]);
  if (holder && holder.share >= HELD) found.push(["#info", holder.member, `: it held the collection of the certification info back in ${percent(holder.share)} of the time.`]);
  return found;
}
const decisionsOf = each => sum(["certified", "conflict", "too_old", "refused"].map(name => checked.get(each)[name]));
/* How loaded it is, then how much was proved. */
function figures() {
  const all = name => sum(longest.map(each => checked.get(each)[name]));
  const decided = sum(longest.map(decisionsOf)), load = [], proof = [];
  const busiest = longest.filter(each => each.last_us > each.first_us).map(each => 1e6 * each.transactions / (each.last_us - each.first_us)).sort((a, b) => b - a)[0];
  const {width_us: step, parts: spans = []} = part("profile").conflicts?.by_time ?? {}, peak = largest(spans.map(span => sum(verdicts.map(([name]) => span[name]))));
  if (busiest) load.push([`${short(busiest)}/s`, "decisions", 1e6 * peak / step > busiest ? `${short(1e6 * peak / step)}/s in the busiest ${spell(step)}` : "on average"]);
  if (decided) load.push([count(all("conflict")), "conflicts", percent(all("conflict") / decided) + ", the first committer won"]);
  const lags = (part("apply").observers ?? []).filter(each => each.lag_us);
  if (lags.length) load.push([time(largest(lags.map(each => each.lag_us.p95))), lags.length > 1 ? "p95 lag of the slowest" : "p95 lag", "from decision until visible"]);
  const busy = (part("apply").observers ?? []).filter(each => known(each.busy_share)).sort((a, b) => b.busy_share - a.busy_share)[0];
  if (busy) load.push([percent(busy.busy_share), "applier busy", `of the time, at ${labelled(busy)}${lags.length > 1 ? ", the busiest" : ""}`]);
  const widths = (part("profile").parallelism ?? []).filter(each => each.mean), replica = part("profile").replica;
  if (widths.length) {
    const [least, most] = [Math.min, Math.max].map(each => fixed(each(...widths.map(width => width.mean)), 1)), appliers = least === most ? `${most} ×` : `${least} to ${most} ×`;
    load.push(replica?.mean ? [`${fixed(replica.mean, 1)} ×`, "could run at once", `at a replica of all; ${appliers} at the members' appliers`] : [`${most} ×`, "could run at once", "on average, workers without limit"]);
  }
  const info = part("profile").certification_info, holder = part("profile").holders?.members?.[0];
  if (info) load.push([short(largest(info.held)), "items held at most", holder ? `${holder.member} holds the collection back most` : "by the certification info"]);
  if (decided) {
    proof.push([count(all("certified")), "certified", percent(all("certified") / decided) + " of the decisions"]);
    proof.push([count(sum([...checked.values()].map(each => each.stamps_checked))), "stamps derived again", "in all members' logs"]);
  } else proof.push([count(sum(longest.map(each => each.transactions))), "decisions", many(data.histories.length, "history", "histories")]);
  const chains = part("proof").observers ?? [];
  if (chains.length) proof.push([percent(sum(chains.map(c => c.chained)) / (sum(chains.map(c => c.rows)) || 1)), "of the rows chained", `${many(sum(chains.map(c => c.reports)), "report")} compared`]);
  main.append(element("div", {id: "figures"}, load.length ? tiles(load) : null, element("div", {class: "proved"}, tiles(proof))));
}
function findings() {
  const {by_code: codes, first} = data.findings;
  if (!codes.length) return;
  const total = data.findings.errors + data.findings.warnings;
  const box = section("findings", "Findings", first.length < total
    ? `${count(first.length)} of ${count(total)} are shown, some of each code; tables/findings has more of them.` : "All of them, in the order of their places.");
  codes.forEach((code, i) => {
    const mine = first.filter(finding => finding.code === code.code);
    const details = element("details", {id: `code-${code.code}`, open: i === 0 || first.length <= 24}, element("summary", {}, element("span", {class: `pill ${code.severity}`}, code.severity),
      element("code", {}, code.code), element("em", {}, code.meaning), element("b", {}, count(code.count))), code.advice ? element("p", {class: "advice"}, element("b", {}, "What to do "), code.advice) : null);
    for (const finding of mine) details.append(element("div", {class: `finding ${finding.severity}-edge`},
      element("b", {}, `log ${finding.log_sequence}, record ${finding.log_index}`),
      element("span", {}, ` ${!finding.kind || finding.kind === "transaction" ? "" : `· ${finding.kind.replaceAll("_", " ")} `}· at ${finding.observer ? named(finding) : "all members"}${finding.gtid ? ` · ${finding.gtid}` : ""}`),
      element("dl", {}, ["expected", "found", "witness"].filter(name => finding[name]).map(name => [element("dt", {}, name), element("dd", {}, finding[name])])), followed(finding), cycleOf(finding), sideBySide(finding)));
    box.append(details);
  });
}
/* What may follow from a finding, and is not told beside it. */
function followed({following}) {
  if (!following?.length) return null;
  const told = following.flatMap((each, i) => [i ? ", " : "", element("code", {}, each.code), ` ${count(each.count)} ×`]);
  return element("p", {class: "links"}, "What may follow from it, as tables/findings has it: ", ...told);
}
/* The cycle of a finding. One that follows from a wrong verdict is not told as a finding beside that, but drawn there. */
const cycles = new Map((part("isolation").cycles ?? []).map(each => [JSON.stringify([each.observer, each.history, each.place]), each]));
function cycleOf({code, observer, history, place}) {
  const told = cycles.get(JSON.stringify([observer, history, place])), follows = ["CONFLICT_MISSED", "TOO_OLD_MISSED", "REFUSAL_MISSED"].includes(code);
  if (!told || (told.code !== code && !follows)) return null;
  const box = element("div");
  if (follows) box.append(element("p", {class: "links"}, "What followed, as the job isolation found it: ", element("code", {}, told.code)));
  drawCycle(box, told);
  return box;
}
/* What the members have recorded at the place of a finding: the columns in which they differ. */
function sideBySide({members, differing}) {
  if (!members || members.length < 2) return null;
  const rows = Object.entries(differing);
  if (!rows.length) return element("p", {class: "alike"}, `${listed(members.map(named))} have recorded the same here, their own stamps and times left aside.`);
  return element("div", {class: "beside"}, table(["", ...members.map(each => ({name: labelled(each), text: true}))], rows.map(([name, values]) => [element("td", {class: "text"}, element("code", {}, name)),
    ...values.map(value => element("td", {class: "text key"}, value === null ? "–" : element("code", {}, value)))])));
}

/* ---- the audit before, whose answers these ones replace ---- */
const FIGURES = {decisions: ["decisions of the longest history", count], aborted_share: ["not certified", percent], lag_p95_us: ["p95 lag of the slowest", time], parallelism: ["could run at once at a replica of all", value => fixed(value, 2)]};
function comparison() {
  const told = data.compared;
  if (!told) return;
  const box = section("compared", "Compared with the audit before", `It began ${moment(told.started_us)} UTC${data.since ? "" : ", and its answers lay where these ones are"}. Its jobs: ${listed(told.jobs) || "none"}.`);
  const rows = [...told.codes.map(each => ({name: element("code", {}, each.code), before: count(each.before), now: count(each.now), news: each.before ? each.now ? "" : "gone" : "new"})),
    ...told.figures.filter(each => FIGURES[each.name]).map(each => ({name: FIGURES[each.name][0], before: FIGURES[each.name][1](each.before), now: FIGURES[each.name][1](each.now), news: ""}))];
  box.append(table(["", "before", "now", {name: "", text: true}], rows.map(({name, before, now, news}) => [element("td", {class: "text key"}, name), before, now, news])));
}

/* ---- what was not looked at: as visible as what was ---- */
function unseen() {
  const isolation = part("isolation"), applied = part("apply"), profile = part("profile"), found = [];
  const all = ["verify", "agree", "isolation", "apply", "profile", "proof"], left = all.filter(name => !ran.has(name));
  if (left.length) found.push([listed(left), left.length > 1 ? "these jobs did not run" : "this job did not run"]);
  for (const row of data.histories) {
    const ends = [row.begins_late ? "begins late" : "", row.ends_early ? "ends early" : ""].filter(Boolean).join(" and ");
    if (ends) found.push([named(row), `${ends}: what others have beyond that was not compared with it`]);
  }
  const blind = (isolation.anomalies ?? []).filter(each => !each.checked).map(each => each.name);
  if (blind.length) found.push([listed(blind), "no transaction had what this needs, such as a read set"]);
  if (isolation.transactions > isolation.with_read_set) found.push(["reads", `${count(isolation.transactions - isolation.with_read_set)} of ${many(isolation.transactions, "transaction")} in all members' logs sent no read set: what they read is not known`]);
  if (isolation.unsearched) found.push(["cycles", `of ${many(isolation.unsearched, "transaction")}: too many, or too far back`]);
  for (const name of applied.skipped ?? []) found.push([name, "its log does not say what its applier ran when"]);
  for (const each of part("proof").observers ?? []) if (each.chained < each.rows) found.push([named(each), `${many(each.rows - each.chained, "row")} not tied to the chain`]);
  const cut = sum((profile.parallelism ?? []).map(each => each.forced_cuts));
  if (cut) found.push(["parallelism", `cut ${many(cut, "time")}: it is a bound`]);
  if (profile.snapshots?.unknown) found.push(["ages of snapshots", `not known of ${many(profile.snapshots.unknown, "transaction")}`]);
  const {since} = data;
  if (since && !since.whole_because) found.push(["rows that were audited before", "their files were not read again, only their names, sizes and times"]);
  if (since?.files_gone) found.push([many(since.files_gone, "file"), "audited before, and no longer there"]);
  if (!found.length) return;
  const box = section("unseen", "Not looked at", "What the logs do not tell, or no job asked. Nothing is claimed about it.");
  checks(box, found.map(([what, why]) => [null, what, why]));
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
  const told = rows.map(row => checked.get(row));
  box.append(table(["member", {name: "source", text: true, wide: true}, {name: "rows", wide: true}, "decisions", "certified", "conflict", "too old", "refused", "stamps checked", {name: "", text: true}],
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
  titled(other, "Isolation", has(isolation.anomalies) ? `${many(isolation.transactions, "transaction")} in all members' logs, ${isolation.with_read_set ? count(isolation.with_read_set) : "none"} of them with the items that they read.${isolation.unsearched ? ` Cycles of ${many(isolation.unsearched, "transaction")} were not looked for: too many, or too far back.` : ""}` : "");
  if (has(isolation.anomalies)) checks(other, isolation.anomalies.map(each => [each.found ? false : each.checked && !isolation.unsearched ? true : null, each.name,
    each.found ? count(each.found) : !each.checked ? "nothing to look at" : isolation.unsearched ? "none where looked for" : "none"]));
  else none(other, missing("isolation"));
  titled(box, "The chain of each history", has(proof.observers) ? "Each row is tied to the one before it. Reports are what members told the group about their chains, digests what they told about their decisions. Of the rows behind the last report a history is the only witness: take an export of the log for these." + (sum(proof.observers.map(each => each.reports_behind)) ? " Reports behind the end of a history that its member told before this audit began are the warning HISTORY_CUT; what was told later is only counted." : "") : "");
  if (!has(proof.observers)) return none(box, missing("proof"));
  const digests = proof.observers.some(each => each.digests !== undefined), behind = proof.observers.some(each => each.reports_behind);
  box.append(table(["member", "rows in the chain", {name: "verified up to", wide: true}, "reports", {name: "rows behind the last", wide: true}, ...(behind ? ["behind the end"] : []), ...(digests ? ["digests"] : [])], proof.observers.map(each => [member(each),
    barred(`${count(each.chained)} of ${count(each.rows)}`, each.chained / (each.rows || 1), each.chained < each.rows ? "var(--bad)" : "var(--good)"),
    each.last_place === null || each.last_place === undefined ? "–" : placed(each.last_place), each.reports, each.unvouched_rows === null ? "–" : count(each.unvouched_rows), ...(behind ? [each.reports_behind ?? 0] : []), ...(digests ? [each.digests] : [])])));
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
/* ---- transactions: their classes, what they read, what they wait for ---- */
function transactions() {
  const box = section("transactions", "Transactions", "Which kinds there are, how old their snapshots are, and how far back they wait.");
  const {classes, snapshots, distances} = part("profile");
  if (!classes && !snapshots && !distances) return none(box, missing("profile"));
  if (classes) classed(box, classes);
  const [one, other] = columns(box);
  titled(one, "Age of snapshots", "How many transactions were certified between what one had read and itself, by the member that sent it.");
  if (has(snapshots?.by_origin)) one.append(table(["member", "transactions", "p50", "p95", "oldest"], snapshots.by_origin.map(each => [each.origin ?? "not known", each.transactions, each.p50, each.p95, each.max])));
  else none(one, "The logs do not tell snapshots as versions.");
  if (snapshots?.unknown && has(snapshots.by_origin)) none(one, `Not known of ${many(snapshots.unknown, "transaction")}: GTID sets, and versions of the future.`);
  titled(other, "Distance of last_committed", `From a transaction's sequence_number back to its last_committed${distances ? `, by the log of ${named(distances)}` : ""}. At 1 it waits for the one right before it.`);
  const powers = distances?.by_power ?? [], most = largest(powers.map(each => each.transactions)), all = sum(powers.map(each => each.transactions));
  if (powers.length) other.append(levels("distances", powers.map(each => ({name: each.from === each.to ? count(each.from) : `${short(each.from)} to ${short(each.to)}`, share: each.transactions / (most || 1), color: "var(--series-1)", text: count(each.transactions), tip: `${percent(each.transactions / all)} of what the applier executed`}))));
  else none(other, "An applier executed nothing.");
  if (!has(snapshots?.oldest)) return;
  titled(box, "The oldest snapshots", "Each that a member's clients had, once: by the last transaction that read at it.");
  box.append(table(["place", "snapshot", "age", {name: "member", text: true}, {name: "decision", text: true, wide: true}, {name: "GTID", text: true}], snapshots.oldest.map(each => [placed(each.place), each.snapshot_version, each.age, each.origin ?? "–", each.verdict.replaceAll("_", " "), each.gtid ? element("td", {class: "text key"}, element("code", {}, each.gtid)) : each.verdict === "certified" ? "–" : "aborted"])));
}
function classed(box, told) {
  const known = told.first.some(each => each.tables), most = largest(told.first.map(each => each.wasted_us));
  titled(box, "Classes, by their tables", `${many(told.classes, "class", "classes")} by the log of ${named(told)}, first what wasted the most time. An aborted transaction counts as long as an applier executed a certified one of its class on average: the log has no times of its own.`);
  const name = each => element("td", {class: "text key"}, each.tables ? element("code", {}, each.tables) : each.tables === "" ? "without write set" : "tables not known");
  const wasted = each => each.wasted_us === null ? "–" : most ? barred(time(each.wasted_us), each.wasted_us / most, "var(--series-2)") : time(each.wasted_us);
  box.append(element("div", {id: "classes"}, table(["tables", "wasted", "abort rate", {name: "aborted", wide: true}, {name: "transactions", wide: true}, {name: "share", wide: true}, {name: "mean execution", wide: true}], told.first.map(each => [name(each), wasted(each), percent(each.abort_rate), each.aborted, each.transactions, percent(each.share), each.mean_us === null ? "–" : time(each.mean_us)]))));
  if (told.classes > told.first.length) none(box, `${count(told.first.length)} of ${count(told.classes)} are shown.`);
  if (!known) none(box, "The log does not name tables; members write them with the setting certification_log_keys.");
}
function info() {
  const box = section("info", "Certification info", "Items that a member keeps in memory to decide: those that were written, until a collection purges them because all members have executed their last writer.");
  const told = part("profile").certification_info;
  if (!told) return none(box, ran.has("profile") ? "The log does not tell times, or which versions collections reached." : missing("profile"));
  const after = told.held.map((value, i) => told.collections[i] ? value : null);
  overTime(box, "held", "Items held over time", {unit: "time", begin: told.begin_us, step: told.bucket_us, format: short,
    series: [{name: "items held", values: told.held, color: "var(--series-1)", kind: "area"}, {name: "after a collection", values: after, color: "var(--series-2)", kind: "line", dash: "0 9999", mark: 4}]});
  box.append(element("ul", {class: "facts"}, element("li", {}, element("b", {}, count(largest(told.held))), ` items at most, `, element("b", {}, count(told.held.at(-1))), ` at the end, by the log of ${named(told)}; in steps of ${time(told.bucket_us)}`),
    element("li", {}, element("b", {}, count(sum(told.collections))), " collections purged ", element("b", {}, count(sum(told.purged))), " items of the ", element("b", {}, count(sum(told.entered))), " that came")));
  if (told.since_start) none(box, "What was held before the history begins is not known: numbers are about how many more than at the least.");
  holders(box, part("profile").holders);
}
function holders(box, told) {
  titled(box, "Who holds the collection back", "Items are purged up to the least of what the members of the view have reported as executed: whose report that is holds the collection back. Members report in turn, about once a second, so in a healthy group each holds it for a while, by what was certified in that second. One that is slow holds it for most of the time, and has much that it had not executed when it reported itself.");
  if (!told) return none(box, "The log does not tell what all members of a view have reported.");
  if (!has(told.members)) return none(box, "Nobody: all had always reported the same.");
  box.append(element("div", {id: "holders"}, table(["member", "share of time", "behind", "not executed"], told.members.map(each => [each.member, barred(percent(each.share), each.share, "var(--series-2)"), each.behind_max, each.unexecuted_max]))));
  none(box, "At most: versions between its report and the next one's, and versions certified and not executed when it reported.");
  const {holder, behind} = told.by_part, most = largest(behind);
  titled(box, "Who held it for longest", `In each ${time(told.bucket_us)}, by the log of ${named(told)}; ${many(most, "version")} behind the next where it is darkest.`);
  strips(box, "held-back", "Who held the collection back over time", told.members.slice(0, 12).map((each, i) => ({name: each.member, values: holder.map((at, part) => at === i ? Math.max(behind[part], 1) : 0), tell: (_, part) => `${each.member} was ${many(behind[part], "version")} behind the next`})), told, Math.max(most, 1));
}
/* Rows of bars over parts of the time, darker where there is more. */
function strips(box, id, label, rows, {begin_us: begin, bucket_us: step}, most) {
  const count = rows[0].values.length;
  plot(box, id, label, rows.length * 22 + 44, (svg, width, height) => {
    const right = width - 10, bottom = height - 40, left = Math.min(Math.max(...rows.map(each => wide(each.name))) + 12, 280, width * .36), size = (right - left) / count;
    rows.forEach(({name, values, tell}, i) => {
      svg.append(shape("text", {x: 0, y: i * 22 + 15, "data-tip": name}, cut(name, left - 10)),
        shape("rect", {x: left, y: i * 22 + 2, width: right - left, height: 18, rx: 3, style: {fill: "var(--track)"}}));
      values.forEach((value, at) => value && svg.append(shape("rect", {class: "heat", x: (left + at * size).toFixed(1), y: i * 22 + 2, width: Math.max(size, 1.5).toFixed(1), height: 18,
        style: {fill: `rgb(var(--heat) / ${(.25 + .75 * value / most).toFixed(2)})`}, "data-tip": `${name}\n${moment(begin + at * step)} UTC: ${tell(value, at)}`})));
    });
    drawHorizontal(svg, axis({kind: "date", from: begin, to: begin + count * step}), left, right, bottom);
  });
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
  heat(box, part("profile").heat);
  const [one, other] = columns(box), hot = part("profile");
  hotItems(one, "Items with the most conflicts", (hot.hot_items ?? []).filter(each => each.conflicts), ["conflicts", "writers", "readers"], "var(--series-2)");
  hotItems(other, "Items with the most writers", (hot.hot_writers ?? []).filter(each => each.writers), ["writers", "conflicts", "readers"], "var(--series-1)");
}
/* Conflicts of the hottest items over time: a row an item. */
function heat(box, told) {
  if (!told) return;
  const items = told.items.slice(0, 12), most = largest(items.map(each => largest(each.conflicts)));
  titled(box, "When hot items were lost over", `Conflicts in each ${time(told.bucket_us)}; ${many(most, "conflict")} where it is darkest.`);
  strips(box, "heat", "Conflicts of hot items over time", items.map(each => ({name: each.key ?? `item ${each.item}`, values: each.conflicts, tell: value => many(value, "conflict")})), told, most);
}
function hotItems(box, title, items, [first, ...others], color) {
  if (!has(items)) return;
  titled(box, title);
  box.append(table(["key", first, ...others], items.slice(0, 12).map(each => [element("td", {class: "text key"}, keyed(each)), barred(count(each[first]), each[first] / items[0][first], color), ...others.map(name => each[name])])));
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
  new Chart(box, {id, label, height, x, y: {kind: logarithmic ? "log" : "linear", format}, series: series.map(({color, dash, thin, mark, kind = "step", ...each}) => ({...each, kind, look: {color, dash, thin, mark}}))});
}
function parallelism() {
  const box = section("parallelism", "Parallelism", "What could have run at once by the stamps of each log. A member's own clients execute its own transactions, which have no stamps there: this is about what each member's applier executed; a replica executes all.");
  const told = part("profile");
  if (!ran.has("profile")) return none(box, missing("profile"));
  const measured = !/^(one|unit|equal|none|count)/.test(String(told.durations ?? "")), long = value => measured ? time(value) : count(value);
  titled(box, "Width over time", `How many transactions can run at once with workers without limit${told.observer ? `, by the log of ${named(told)}` : ""}. ${measured ? "Durations are those of execution, without the wait for the turn to commit; logs of format 1 do not tell the two apart." : "No durations are known: each transaction counts as one."}`);
  if (told.width && has(told.width.mean)) overTime(box, "width", "Width over time", {unit: told.width.unit, begin: told.width.begin ?? 0, step: told.width.bucket || 1, format: short,
    series: [{name: "most", values: told.width.max, color: "var(--series-3)", thin: true}, {name: "mean", values: told.width.mean, color: "var(--series-1)", kind: "area"}]});
  else none(box, missing("profile"));
  const most = (each, text) => each.forced_cuts ? `≤ ${text}` : text, least = (each, text) => each.forced_cuts ? `≥ ${text}` : text;
  if (has(told.parallelism)) box.append(table(["member", "transactions", {name: "epochs", wide: true}, {name: measured ? "work" : "work, transactions", wide: true}, measured ? "critical path" : "critical path, transactions", "mean width", {name: "widest", wide: true}], told.parallelism.map(each =>
    [member(each), each.transactions, most(each, count(each.epochs)), long(each.work), most(each, long(each.critical_path)), each.mean ? least(each, fixed(each.mean, 2)) : "–", each.forced_cuts ? `about ${count(each.width_max)}` : each.width_max])));
  const cut = sum((told.parallelism ?? []).map(each => each.forced_cuts));
  if (cut) none(box, `Cut ${many(cut, "time")} where not everything is waited for, as too many transactions hang together: ≤ and ≥ are bounds.`);
  const mine = (told.parallelism ?? []).find(each => each.observer === told.observer && each.history === told.history);
  replica(box, told, mine, long);
  sample(box, told);
  windows(box, told, mine, long);
}
/* One that applies all that was certified, beside the applier of the member whose log tells it. */
function replica(box, told, mine, long) {
  const all = told.replica;
  if (!all) return;
  const stamped = all.rule === "stamps", w = told.windows;
  titled(box, "A replica of all transactions", `${stamped ? "By the stamps, which all transactions have" : "Transactions of the member's own clients have no stamps: each is taken to wait for the last writers of its items, as if nothing were ever purged"}, by the log of ${named(all)}.`
    + (all.estimated ? ` ${many(all.estimated, "transaction")} that no applier executed ${all.estimated === 1 ? "counts" : "count"} as ${time(all.unit_us)} each, the mean of the others.` : ""));
  const row = (name, transactions, work, path, cut) => [element("td", {class: "text key"}, name), transactions, long(work), `${cut ? "≤ " : ""}${long(path)}`, path ? `${cut ? "≥ " : ""}${fixed(work / path, 2)}` : "–"];
  const rows = mine ? [row(`applier of ${named(mine)}`, mine.transactions, mine.work, mine.critical_path, mine.forced_cuts)] : [];
  if (mine && !stamped && w?.critical_path_without) rows.push(row("the same, nothing purged", mine.transactions, mine.work, w.critical_path_without, w.forced_cuts));
  box.append(element("div", {id: "replica"}, table([{name: "", text: true}, {name: "transactions", wide: true}, {name: "work", wide: true}, "critical path", "mean width"], [...rows, row("replica of all", all.transactions, all.work, all.critical_path, all.forced_cuts)])));
}
function sample(box, told) {
  if (!told.sample || !told.whatif) return;
  titled(box, "Speed-up by workers", `${many(told.sample.transactions, "transaction")} of ${told.observer ? named(told) : "one history"}, ${percent(told.sample.share)} of those that an applier executed, are a trace beside this page. This command schedules it under every scheme${told.sample.has_tables === false ? "; the log names no tables, so the schemes database and table are not known by it" : ""}:`);
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
/* How busy an applier was, in words. What could run at once is that of its own stamps. */
function used(each) {
  const least = each.forced_cuts ? "at least " : "", most = each.forced_cuts && each.possible_mean < each.workers ? "at most " : "";
  const by = each.workers ? many(each.workers, "worker") : "workers that the log does not name";
  const busy = !each.running_mean ? "" : ` While it executed any, ${fixed(each.running_mean)} ran at once on average${each.possible_mean ? ` where ${least}${fixed(each.possible_mean)} could` : ""}`
    + `${known(each.used_share) ? `: ${most}${percent(each.used_share)} of what these workers could have made of it` : ""}.`;
  const idle = !known(each.busy_share) ? "" : each.busy_share < .5 ? ` It was idle in all but ${percent(each.busy_share)} of the time: few at once means little to do, not a slow applier.` : ` It executed in ${percent(each.busy_share)} of the time.`;
  const lag = each.lag_us ? ` Half were visible within ${time(each.lag_us.p50)} of their decision, 95 of 100 within ${time(each.lag_us.p95)}, all within ${time(each.lag_us.max)}.` : "";
  return `${many(each.transactions, "transaction")} by ${by}; ${percent(each.overlapping ?? 0)} of them overlapped another, from its start until it was visible.${busy}${idle}${lag}`;
}
/* What a point of the lag is made of: few transactions have a p95 that is their largest. */
function crowd(lag) {
  const counts = (lag.count ?? []).filter(Boolean);
  return counts.length ? `Lag, in each ${time(lag.bucket_us)}: about ${many(Math.round(sum(counts) / counts.length), "transaction")} a point` : "Lag";
}
function appliers() {
  const box = section("appliers", "Appliers", "How long a transaction took from its decision until it was visible, and how much of what could run at once did.");
  const told = part("apply");
  if (!has(told.observers)) none(box, ran.has("apply") ? "The logs do not say when transactions were executed." : missing("apply"));
  (told.observers ?? []).forEach((each, i) => {
    titled(box, named(each), used(each));
    const [one, other] = columns(box);
    const lag = each.lag ?? {}, running = each.running ?? {};
    const positive = (lag.max_us ?? []).filter(value => value > 0), middle = (lag.p50_us ?? []).filter(value => value > 0);
    one.append(element("p", {style: {"font-size": "13px", margin: "6px 0 2px"}}, crowd(lag)));
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
for (const part of [findings, comparison, unseen, histories, trust, decisions, transactions, info, conflicts, parallelism, appliers, computed]) part();
navigation([...main.querySelectorAll("section")]);
document.documentElement.dataset.drawn = "yes";
