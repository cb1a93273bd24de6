/* ---- a cycle of dependencies as a graph: transactions one after another, and an edge back from the last to the first ---- */
const LINKS = {
  ww: ["overwrote", (one, row, other) => `${one} wrote ${row}, which ${other} overwrote`],
  wr: ["read what was written", (one, row, other) => `${one} wrote ${row} as ${other} read it`],
  rw: ["had read what was there before", (one, row, other) => `${one} read ${row} as it was before ${other} wrote it`],
};
const fullName = each => (each.gtid ?? `version ${each.version}`) + (each.member ? ` of ${each.member}` : "");
const shortName = each => each.gtid ? each.gtid.replace(/^(.{4}).*(.{4}):/, (_, first, last) => `${first}…${last}:`) : `version ${each.version}`;
/* What there is room for; of a row's key the end tells more. */
function cut(text, room) {
  let shown = text;
  while (wide(shown) > room && shown.length > 2) shown = `…${shown.slice(2)}`;
  return shown;
}
/* Side by side where there is room, else below each other. */
function drawCycle(box, {transactions, edges}) {
  const next = i => transactions[(i + 1) % transactions.length];
  const sentences = edges.map((edge, i) => LINKS[edge.dependency][1](fullName(transactions[i]), edge.row, fullName(next(i))));
  const size = Math.max(...transactions.map(each => Math.max(wide(shortName(each)), wide(each.member ?? "")))) + 28, count = transactions.length;
  const holder = element("div", {class: "cycle"});
  box.append(holder);
  const node = (svg, each, x, y) => svg.append(shape("g", {class: "node", "data-tip": fullName(each)}, shape("rect", {x, y, width: size, height: 42, rx: 9}),
    shape("text", {class: "gtid", x: x + size / 2, y: y + (each.member ? 18 : 26), "text-anchor": "middle"}, shortName(each)), each.member ? shape("text", {x: x + size / 2, y: y + 34, "text-anchor": "middle"}, each.member) : []));
  const head = (x, y, turn) => shape("path", {class: "head", d: "M0 0L-8-4.5V4.5Z", transform: `translate(${x} ${y}) rotate(${turn})`});
  const edge = (svg, i, path, [x, y, turn], [left, top, room, anchor, apart = 16]) => {
    const {dependency, row} = edges[i];
    svg.append(shape("g", {class: `edge ${dependency}`, "data-tip": sentences[i]}, shape("path", {d: path}), head(x, y, turn),
      shape("text", {class: "kind", x: left, y: top, "text-anchor": anchor}, dependency), shape("text", {x: left, y: top + apart, "text-anchor": anchor}, cut(row, room))));
  };
  const across = (svg, width, gap) => {
    const top = 10, middle = top + 21, low = 96;
    edges.forEach((_, i) => {
      const begin = i * (size + gap) + size, end = begin + gap;
      if (i < count - 1) edge(svg, i, `M${begin} ${middle}H${end - 8}`, [end - 1, middle, 0], [begin + gap / 2 - 4, middle - 6, gap - 28, "middle", 23]);
    });
    const right = width - size / 2, left = size / 2;
    edge(svg, count - 1, `M${right} ${top + 42}V${low - 12}Q${right} ${low} ${right - 12} ${low}H${left + 12}Q${left} ${low} ${left} ${low - 12}V${top + 51}`, [left, top + 43, -90], [width / 2, low - 6, width - size, "middle", 23]);
    transactions.forEach((each, i) => node(svg, each, i * (size + gap), top));
  };
  const down = (svg, width) => {
    const left = 22, middle = left + size / 2, step = 96, low = (count - 1) * step + 42;
    edges.forEach((_, i) => {
      const begin = i * step + 42, room = width - middle - 18;
      if (i < count - 1) edge(svg, i, `M${middle} ${begin}V${begin + 46}`, [middle, begin + 53, 90], [middle + 14, begin + 22, room, "start"]);
      else edge(svg, i, `M${middle} ${low}V${low + 30}Q${middle} ${low + 42} ${middle - 12} ${low + 42}H14Q2 ${low + 42} 2 ${low + 30}V33Q2 21 14 21`, [left - 1, 21, 0], [middle + 14, low + 22, room, "start"]);
    });
    transactions.forEach((each, i) => node(svg, each, left, i * step));
  };
  const draw = () => {
    const room = Math.floor(holder.clientWidth), gap = Math.min(280, (Math.min(room, 860) - count * size) / Math.max(count - 1, 1));
    if (!room || room === drawn) return;
    drawn = room;
    const isAcross = gap >= 150, [width, height] = isAcross ? [count * size + (count - 1) * gap, 120] : [room, (count - 1) * 96 + 98];
    const svg = shape("svg", {width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Cycle of ${many(count, "transaction")}: ${sentences.join("; ")}`});
    holder.replaceChildren(svg);
    (isAcross ? across : down)(svg, width, gap);
  };
  let drawn = 0;
  draw();
  new ResizeObserver(draw).observe(holder);
  const kinds = [...new Set(edges.map(each => each.dependency))];
  box.append(element("p", {class: "links"}, "Each comes before the next: ", kinds.map((kind, i) => [i ? ", " : "", element("b", {}, kind), ` ${LINKS[kind][0]}`]), "."));
}
