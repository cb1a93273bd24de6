// Numbers for people, each with its unit.

const counts = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

// A number and its unit, as two texts: [text, unit].
export const count = (number, one, many = `${one}s`) =>
  known(number, (each) => [counts.format(each), each === 1 ? one : many]);
export const rate = (number) => known(number, (each) => [shortened(each), "/s"]);
export const percent = (number) => known(number, (each) => [tenths.format(100 * each), "%"]);
export const milliseconds = (number) =>
  known(number, (each) => (each < 1000 ? [shortened(each), "ms"] : [tenths.format(each / 1000), "s"]));

export function bytes(number) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (number >= 1024 && at < units.length - 1) {
    number /= 1024;
    at += 1;
  }
  return [tenths.format(number), units[at]];
}

// "1,234 versions" of one of the functions above.
export const text = ([number, unit]) => (unit && unit !== "/s" && unit !== "%" ? `${number} ${unit}` : number + unit);

// How long ago, or for how long: "42 s", "7 min", "3 h".
export function span(milliseconds) {
  if (milliseconds < 1000) return `${Math.max(0, Math.round(milliseconds))} ms`;
  const seconds = milliseconds / 1000;
  if (seconds < 100) return `${Math.round(seconds)} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

// A time of day, of this browser's zone; of another day with its date.
export function clock(milliseconds) {
  const at = new Date(milliseconds);
  const time = at.toLocaleTimeString("en-GB");
  return at.toDateString() === new Date().toDateString() ? time : `${at.toLocaleDateString("en-CA")} ${time}`;
}

const ENDINGS = { ms: "ms", usec: "µs", seconds: "s" };
const THINGS = /transactions|messages|items|rows|files|databases|versions|snapshots|outcomes|workers|tries|replicas/;
const OTHERS = { flow_control_lag_max: "transactions", binlog_commit_wait_count: "transactions" };

// A setting's value with its unit, which its name tells.
export function setting(name, value) {
  if (value === null) return "not told";
  if (value === "") return "none";
  if (!/^\d+$/.test(value)) return value;
  const number = Number(value);
  if (/_bytes_per_second/.test(name)) return `${text(bytes(number))}/s`;
  if (/_bytes(_|$)/.test(name)) return text(bytes(number));
  const things = OTHERS[name] ?? THINGS.exec(name)?.[0] ?? "";
  const unit = ENDINGS[name.split("_").pop()] ?? (number === 1 ? things.replace(/ies$/, "y").replace(/s$/, "") : things);
  return `${counts.format(number)} ${unit}`.trim();
}

function known(number, format) {
  return number === null || number === undefined ? ["–", ""] : format(number);
}

function shortened(number) {
  return (Math.abs(number) < 10 && number ? tenths : counts).format(number);
}
