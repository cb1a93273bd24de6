// Asks this member once a second, draws what it says, and says so when it says nothing any more.

import { Chart } from "./charts.js";
import { byId, element, keepChildren, keepFacts, setAttribute, setClass, setText } from "./elements.js";
import { drawGroup, drawLines, kindOf } from "./group.js";
import { drawTables, onSettings } from "./tables.js";
import { count, milliseconds, percent, rate, span } from "./units.js";

const PERIOD_MS = 1000;
const ANSWER_MS = 2500;
const LOST_MS = 2000;

const charts = {
  rates: new Chart(byId("rates"), "Commits and aborts per second", "/s", [
    { name: "commits", field: "commits_per_second", color: "commits", format: rate, filled: true },
    { name: "aborts", field: "aborts_per_second", color: "aborts", format: rate },
  ]),
  times: new Chart(byId("times"), "Time of a commit", "ms", [
    { name: "p50", field: "p50_ms", color: "p50", format: milliseconds },
    { name: "p99", field: "p99_ms", color: "p99", format: milliseconds },
  ]),
};
let known = null;
let receivedAt = 0;
let consoles = [];
let problem = "";

async function ask() {
  try {
    const answer = await fetch("/console.json", { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) });
    if (!answer.ok) throw new Error((await answer.text()).trim());
    known = await answer.json();
    receivedAt = performance.now();
    problem = "";
    draw();
  } catch (error) {
    problem = error.name === "Error" ? error.message : "no answer";
  }
}

function draw() {
  if (!known) return;
  const nowMs = known.at_us / 1000 + performance.now() - receivedAt;
  setText(byId("group"), known.group);
  setText(byId("observer"), known.observer);
  setText(document.querySelector("title"), `${titleOf(known)} · groupcert`);
  if (known.starting) {
    drawProblems([{ kind: "member_state", name: known.observer, text: `${known.observer} is starting` }]);
    return;
  }
  rememberConsoles();
  drawProblems(known.problems);
  drawFigures();
  drawGroup(known, nowMs);
  charts.rates.update(known.history, nowMs);
  charts.times.update(known.history, nowMs);
  drawTables(known, nowMs);
  setText(byId("release"), `groupcert ${known.release}`);
}

function titleOf({ group, observer, problems }) {
  const found = problems?.length ?? 0;
  return found ? `(${found}) ${group} at ${observer}` : `${group} at ${observer}`;
}

// The consoles of others stay known when this member is gone.
function rememberConsoles() {
  const others = known.members.filter((each) => each.name !== known.observer);
  consoles = others
    .map(({ name, console }) => ({ name, console: console || consoles.find((each) => each.name === name)?.console }))
    .filter((each) => each.console);
  drawLinks(byId("consoles"));
}

function drawLinks(place) {
  keepChildren(
    place,
    consoles,
    (each) => each.name,
    () => element("a"),
    (child, each) => {
      setText(child, each.name);
      setAttribute(child, "href", `http://${each.console}/`);
      setAttribute(child, "title", `the console of ${each.name}`);
    },
  );
}

function drawProblems(problems) {
  const place = byId("problems");
  setClass(place, "bad", problems.length);
  const shown = problems.length ? problems : [{ kind: "", name: "", text: "Nothing is wrong." }];
  keepChildren(
    place,
    shown,
    (each) => `${each.kind}/${each.name}`,
    () => element("p", element("i.dot"), element("span")),
    (child, each) => setText(child.lastElementChild, each.text),
  );
}

function drawFigures() {
  const { history, members, transactions } = known;
  const last = (field) => history[field].at(-1) ?? null;
  const [commits, aborts] = [last("commits_per_second"), last("aborts_per_second")];
  const there = members.filter((each) => !each.departed);
  const online = there.filter((each) => kindOf(each) === "good").length;
  keepFacts(byId("figures"), [
    ["members ONLINE", [`${online} of ${there.length}`, ""]],
    ["commits", rate(commits)],
    ["aborts", rate(aborts)],
    ["aborted, of all", percent(commits + aborts > 0 ? aborts / (commits + aborts) : null)],
    ["p50 of a commit", milliseconds(last("p50_ms"))],
    ["p99 of a commit", milliseconds(last("p99_ms"))],
    ["transactions certified", count(transactions.certified, "", "")],
  ]);
}

// Tells how old what is shown is, and that the member is gone.
function drawAge() {
  const ageMs = performance.now() - receivedAt;
  const isLost = Boolean(problem) && (!known || ageMs > LOST_MS);
  const age = byId("age");
  setClass(age, "bad", isLost);
  setText(age.lastElementChild, !known ? problem || "connecting" : isLost ? `${span(ageMs)} old` : "live");
  setClass(document.body, "lost", isLost && known);
  const lost = byId("lost");
  lost.hidden = !isLost;
  if (!isLost) return;
  if (!lost.children.length) lost.append(element("b"), element("span"), element("span.links"));
  const name = known?.observer ?? "this member";
  const seconds = span(Math.floor(ageMs / 1000) * 1000);
  setText(lost.children[0], problem === "no answer" ? `No answer from ${name} for ${seconds}.` : problem);
  setText(lost.children[1], known ? ` What is shown is as old. ${consoles.length ? "Look at " : ""}` : "");
  drawLinks(lost.children[2]);
}

async function run() {
  for (;;) {
    const begun = performance.now();
    await ask();
    drawAge();
    await new Promise((done) => setTimeout(done, Math.max(PERIOD_MS - (performance.now() - begun), 100)));
  }
}

onSettings(draw);
new ResizeObserver(drawLines).observe(byId("picture"));
setInterval(drawAge, PERIOD_MS / 2);
run();
