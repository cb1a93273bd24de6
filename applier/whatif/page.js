const schemes = data.schemes.map((scheme, i) => ({...scheme, look: lookOf(i)}));
const most = data.workers.at(-1);
const known = data.critical_path.is_known;
let workers = most;
const runOf = (scheme, number = workers) => scheme.runs.find(run => run.workers === number);
const ranked = number => schemes.toSorted((a, b) => runOf(b, number).speedup - runOf(a, number).speedup);
/* The fastest that neither let a transaction overtake one that it follows nor divided transactions. */
const winner = number => ranked(number).find(scheme => runOf(scheme, number).overtakers === 0);
const times = x => `${fixed(x, x < 100 ? 2 : 0)}${SPACE}×`;

const question = text => main.append(element("h2", {class: "question"}, text));

function lead() {
  const {workload: {costs, durations, ...workload}, source, critical_path: path} = data, best = winner(most);
  const left = sum([source.conflicts, source.too_old, source.refused]);
  main.append(element("h1", {}, "What if"), element("p", {}, `${(source.files ?? []).join(", ")}: ${many(workload.transactions, "transaction")}, scheduled under every scheme on a virtual clock.`));
  question("What do I gain?");
  main.append(tiles([
    ...(best ? [[times(runOf(best, most).speedup), best.label, `the fastest that keeps the order, ${many(most, "worker")}`]] : []),
    known ? [times(path.speedup_max), "bound", "for who commits each transaction by itself, however many workers"] : ["not known", "bound", "the log does not name all rows"],
    [time(workload.serial_us), "of work", `one worker, each transaction alone${workload.read < workload.entries ? `, of ${count(workload.read)} that were read` : ""}`],
    [count(workload.transactions), "transactions", `${count(left)} others were not certified`],
  ]));
}

function curves() {
  const box = section("speedups", "Speed-up by workers", `How many times as fast as one worker that commits each transaction alone; both axes are logarithmic. `
    + (known ? `The dashed bound is the longest of work divided by workers, what the processors have to do, and the longest chain of transactions: only who merges transactions `
    + `and so saves commits, divides them, or lets one overtake another that it follows can pass it.` : ""));
  const series = [...(known ? [{name: "bound", look: BOUND, values: data.bounds.map(each => each.speedup), note: times(data.bounds.at(-1).speedup)}] : []),
    ...ranked(most).map(scheme => ({name: scheme.label, look: scheme.look, values: scheme.runs.map(run => run.speedup), note: times(runOf(scheme, most).speedup)}))];
  const seen = series.flatMap(each => each.values), [low, high] = [smallest(seen), largest(seen)];
  new Chart(box, {id: "curves", label: "Speed-up by workers, for each scheme", height: 460, series,
    x: {kind: "log", base: 2, at: data.workers, name: "workers", format: count},
    y: {kind: "log", base: 2, from: low * .85, to: high * 1.15, name: "speed-up", format: x => `${trimmed(x)}${SPACE}×`}});
}

function picker() {
  const buttons = data.workers.map(number => element("button", {type: "button", onclick: () => { workers = number; views.forEach(view => view()); }}, String(number)));
  main.append(element("div", {class: "picker", role: "group", "aria-label": "Workers"}, element("span", {}, "Workers"), buttons));
  return () => buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(data.workers[i] === workers)));
}

function servers() {
  const box = section("servers", "", "A server's own replica schedules so with this setting; numbers are of the costs below (--like mariadb-replica has those of MariaDB's own). Then come all schemes of a replica of groupcert.");
  const holder = element("div");
  box.append(holder);
  return () => {
    box.querySelector("h2").textContent = `Settings of MySQL and MariaDB, with ${many(workers, "worker")}`;
    holder.replaceChildren(table([{name: "setting", text: true}, {name: "scheme", text: true, wide: true}, "speed-up"], ranked(workers).flatMap(scheme =>
      scheme.settings.map(({server, replica, source, limits}) => ({attributes: {"data-server": server}, cells: [
        element("td", {}, element("b", {}, server), " ", element("code", {}, replica), source ? [", at the source ", element("code", {}, source)] : null,
          element("small", {}, limits)),
        element("td", {class: "text"}, scheme.label), element("td", {}, element("b", {}, times(runOf(scheme).speedup)))]})))));
  };
}

function results() {
  const box = section("results", "", "The winner is the fastest that kept the order. Of bound: how near the run came to it. "
    + "Overtakers: transactions that started before one that they follow was visible; schemes without conflict control rely on there being none.");
  const holder = element("div");
  box.append(holder);
  return () => {
    const best = winner(workers);
    box.querySelector("h2").textContent = `With ${many(workers, "worker")}, by speed-up`;
    holder.replaceChildren(table([{name: "scheme", text: true}, "speed-up", "of bound", ...["time", "worker use", "width mean / max", "group commits", "mean size",
      "overtakers", "consistency"].map(name => ({name, wide: true}))], ranked(workers).map(scheme => {
      const run = runOf(scheme), overtakers = run.overtakers === null ? "parts" : count(run.overtakers), width = `${fixed(run.width_mean, 1)} / ${run.width_max}`;
      return {attributes: {class: scheme === best ? "winner" : null, "data-scheme": scheme.label}, cells: [
        element("td", {}, sample(scheme), scheme.label, scheme === best ? element("span", {class: "pill fine"}, "winner") : null,
          element("small", {}, `${time(run.makespan_us)}, workers used ${percent(run.worker_use)}, width ${width}, group commits of `
            + `${fixed(run.commit_group_mean, 1)}, ${run.overtakers === null ? "in parts" : many(run.overtakers, "overtaker")}, ${scheme.consistency}`)),
        element("td", {}, element("b", {}, times(run.speedup)), data.windows ? element("span", {class: "spread"}, ` ± ${percent(run.spread)}`) : null),
        known ? barred(percent(run.bound_share), run.bound_share, scheme.look.color) : null,
        time(run.makespan_us), percent(run.worker_use), width, run.commit_groups, fixed(run.commit_group_mean, 1), overtakers, scheme.consistency]};
    })));
  };
}

const NAMES = {executing: "executing", processor: "waiting for a processor", committing: "committing", waiting: "waiting for its turn to commit"};
const COLORS = {executing: "var(--series-1)", processor: "var(--processor)", committing: "var(--series-3)", waiting: "var(--waiting)", nothing_left: "var(--nothing)"};
function stack() {
  const box = section("held", "The workers' time", "All of the workers' time, and the share in which they worked. Idle time bears the reason why the next transaction was not handed over.");
  const idle = [...new Set(schemes.flatMap(scheme => scheme.runs.flatMap(run => Object.keys(run.worker_time_us.idle))))].filter(key => key !== "nothing_left").sort();
  const nameOf = key => NAMES[key] ?? `idle: ${key === "nothing_left" ? "nothing was left to start" : data.causes[key]}`;
  const colorOf = key => COLORS[key] ?? (idle.indexOf(key) < 8 ? `var(--cause-${idle.indexOf(key)})` : "var(--faint)");
  const bars = element("div", {class: "stack"});
  box.append(element("div", {class: "causes"}, [...Object.keys(NAMES), ...idle, "nothing_left"].map(key =>
    element("span", {}, element("i", {class: "dot", style: {background: colorOf(key)}}), nameOf(key)))), bars);
  return () => bars.replaceChildren(...ranked(workers).flatMap(scheme => {
    const run = runOf(scheme), {executing, processor, committing, waiting_to_commit: waiting, idle} = run.worker_time_us, whole = Math.max(1, run.workers * run.makespan_us);
    const told = (key, us) => [nameOf(key), `${percent(us / whole)} of the workers' time`,
      run.held[key] ? `held ${many(run.held[key].transactions, "transaction")} for ${time(run.held[key].us)}` : "",
      run.fallbacks[key] ? `fell back to sequential ${many(run.fallbacks[key], "time")}` : ""].filter(Boolean).join("\n");
    return [element("span", {}, scheme.label), element("span", {class: "whole"}, Object.entries({executing, processor, committing, waiting, ...idle})
      .filter(([, us]) => us / whole > .0005).map(([key, us]) => element("i", {style: {flex: `${us} 0 0`, background: colorOf(key)}, "data-tip": told(key, us)}))),
    element("span", {}, percent(run.worker_use))];
  }));
}

function widths() {
  const box = section("widths", "Width over time", "How many workers execute, from the run's beginning to its end; on one scale for all; each chart has its own time.");
  const holder = element("div", {class: "multiples"});
  box.append(holder);
  return () => {
    const highest = largest(schemes.flatMap(scheme => runOf(scheme).width.workers)), order = ranked(workers);
    holder.replaceChildren();
    for (const scheme of order) {
      const {width: {bucket_us: bucket, workers: values}, makespan_us: end} = runOf(scheme), cell = element("div");
      holder.append(cell);
      titled(cell, [scheme.label, element("em", {}, time(end))]);
      new Chart(cell, {label: `Workers that execute under ${scheme.label}, over time`, height: 120, series: [{name: "workers", kind: "area", values, look: {color: scheme.look.color}}],
        x: {kind: "elapsed", from: 0, to: end, at: values.map((_, i) => i * bucket)}, y: {from: 0, to: highest * 1.04 || 1}});
    }
  };
}

function hot() {
  const [rows, tables] = columns(section("hot", "Hot rows and tables"));
  const longest = largest(data.hot_items.map(item => item.critical_path_us)), key = text => element("td", {class: "key"}, element("code", {}, text || "without a name"));
  titled(rows, "Rows", "Those with most time in the longest chain, then those written most often.");
  rows.append(table(["row", "writers", "in the chain"], data.hot_items.map(item => [key(item.item), item.writers,
    item.critical_path_us ? barred(time(item.critical_path_us), item.critical_path_us / longest, "var(--series-2)") : null])));
  titled(tables, "Tables", "By the time of the transactions that write them.");
  tables.append(table(["table", {name: "transactions", wide: true}, "work", "in the chain"], data.hot_tables.map(each => [key(each.table), each.transactions, time(each.work_us),
    each.critical_path_us ? time(each.critical_path_us) : null])));
  const {transactions, length_us: length, first, last} = data.critical_path, apart = transactions > first.length + last.length ? " → … → " : " → ";
  const ends = [first.join(" → "), last.slice(Math.max(0, first.length + last.length - transactions)).join(" → ")].filter(Boolean).join(apart);
  section("path", "The longest chain", `${many(transactions, "transaction")}, each of which follows the one before it, take ${time(length)} with their commits; its ends:`)
    .append(element("code", {}, ends));
}

function certainty() {
  const {workload: {costs, durations, read}, source, stamps, windows} = data;
  const modelled = `a transaction takes ${costs.execute_us} µs and ${costs.row_us} µs a row, in the mean, with a standard deviation of ${costs.spread_percent}${SPACE}%`;
  const job = costs.job_us ? `each job ${costs.job_us} µs, whatever is merged in it` : "";
  const commit = `a commit waits ${costs.commit_us} µs for the disk, ${costs.syncs_together ? "once for a group" : "for each of a group"}`;
  const processors = costs.cores ? `${many(costs.cores, "processor")}: ${costs.applier_percent}${SPACE}% of an execution is the applier's, one at a time, ${costs.server_percent}${SPACE}% the target's; `
    + `each commit takes ${costs.commit_applier_us} and ${costs.commit_server_us} µs of them` : "all of the work is waiting: a target whose processors are busy is slower (--like, --cores)";
  const notes = [...(source.notes ?? []),
    {source: "Durations are the stream's own", mixed: `Where the stream does not say it, ${modelled}`, model: `Durations are drawn: ${modelled}`}[durations],
    `Costs: ${[job, commit, processors].filter(Boolean).join("; ")}`,
    windows ? `Scheduled were ${windows.count} windows of the stream, ${count(windows.entries)} of its entries (${percent(windows.share)}), and times of runs are theirs; `
      + `a window's speed-up differs from theirs together by ${percent(windows.spread)} at most (${windows.spread_of}). `
      + `Work, hot rows and tables, the longest chain and intervals are those of the ${count(read)} entries that were read` : "Scheduled was all of the stream",
    ...Object.entries(stamps).map(([name, each]) => `Average modified interval length of the stamps by ${name}: ${fixed(each.interval_mean, 1)}`)];
  section("certainty", "What the numbers stand on").append(element("ul", {class: "notes"}, notes.map(note => element("li", {}, note))));
}

lead();
curves();
question("With which setting of my server?");
const views = [picker(), servers(), results()];
question("What holds me back?");
views.push(stack());
hot();
views.push(widths());
question("How sure is this?");
certainty();
views.forEach(view => view());
document.documentElement.dataset.drawn = "yes";
