/* Numbers for people: each with its unit. Times are in microseconds. */
const SPACE = "\u00a0";
const count = n => Number(n ?? 0).toLocaleString("en");
const fixed = (x, digits = 2) => Number(x).toFixed(digits);
const trimmed = (x, digits = 2) => String(+Number(x).toFixed(digits));
const short = x => x >= 1e9 ? `${trimmed(x / 1e9, 1)}G` : x >= 1e6 ? `${trimmed(x / 1e6, 1)}M` : x >= 1e3 ? `${trimmed(x / 1e3, 1)}k`
  : trimmed(x, x < 10 ? 2 : 0);
const percent = x => x === 0 ? `0${SPACE}%` : x < .0005 ? `<${SPACE}0.1${SPACE}%`
  : x > .9995 && x < 1 ? `>${SPACE}99.9${SPACE}%` : x >= .995 && x < 1 ? `${fixed(100 * x, 1)}${SPACE}%` : `${fixed(100 * x, x < .0995 ? 1 : 0)}${SPACE}%`;
const time = us => us >= 3.6e9 ? `${trimmed(us / 3.6e9, 1)} h` : us >= 6e7 ? `${trimmed(us / 6e7, 1)} min`
  : us >= 1e6 ? `${trimmed(us / 1e6)} s` : us >= 1e3 ? `${trimmed(us / 1e3, us < 1e4 ? 2 : 1)} ms` : us ? `${Math.round(us)} µs` : "0";
const many = (n, one, more = `${one}s`) => `${count(n)} ${n === 1 ? one : more}`;
const listed = names => names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
const sum = list => list.reduce((total, each) => total + (each ?? 0), 0);
const largest = list => list.reduce((most, each) => Math.max(most, each ?? 0), 0);
const smallest = list => list.reduce((least, each) => Math.min(least, each ?? Infinity), Infinity);
const iso = us => new Date(us / 1000).toISOString();
const moment = us => `${iso(us).slice(0, 10)} ${iso(us).slice(11, 19)}`;
