// waits.js - the wait graph: ranks in the same situation, the operations they wait in, and the
// ranks that did not issue them; cycles are drawn as cycles.

// The relation of one rank, and of several, to an operation, in the order of WaitRole. If
// operations are drawn as one, the same ranks may wait in some and never have issued others.
const ROLES = [['waits in', 'wait in'], ['never issued', 'never issued'],
               ['may have come to', 'may have come to'],
               ['has evidence too old to tell of', 'have evidence too old to tell of'],
               ['waits elsewhere before', 'wait elsewhere before'],
               ['has a device that is behind in', 'have devices that are behind in'],
               ['issued something else as', 'issued something else as']];

// [{from, to, words}] between nodes 'c<k>' (class) and 's<k>' (operation): from a waiting class to
// the operation, from the operation to the ranks that did not issue it.
function waitEdges(graph) {
  return graph.edges.map(([c, s, role]) => role === 0 ?
      {from: 'c' + c, to: 's' + s, role} : {from: 's' + s, to: 'c' + c, role});
}

// Columns from left to right: the number of steps from a node to the end of the waits.
function layers(nodes, edges, ends) {
  const far = new Map();
  const reach = (queue) => {
    queue.forEach((n) => far.set(n, 0));
    while (queue.length) {
      const node = queue.shift();
      for (const e of edges) {
        if (e.to === node && !far.has(e.from)) {
          far.set(e.from, far.get(node) + 1);
          queue.push(e.from);
        }
      }
    }
  };
  reach([...ends]);
  for (;;) {  // the rest ends elsewhere, or is a cycle
    const left = nodes.filter((n) => !far.has(n));
    if (left.length === 0) {
      break;
    }
    const sinks = left.filter((n) => !edges.some((e) => e.from === n));
    reach(sinks.length ? sinks : left.slice(0, 1));
  }
  const most = Math.max(0, ...far.values());
  const columns = Array.from({length: most + 1}, () => []);
  nodes.forEach((n) => columns[most - far.get(n)].push(n));
  return columns.filter((c) => c.length);
}

// The graph of a verdict whose waits are not operations in the records.
function plainGraph() {
  const waiting = report().verdict.waiting.slice(0, 16);
  return {slots: waiting.map((w) => ({words: w.op + (w.seq ? ` #${w.seq}` : '') +
              (w.desc ? ` of ${w.desc}` : ''), n: 1, g: -1, s: w.seconds})),
          classes: waiting.map((w) => [foldRanks(w.ranks), w.ranks.length])
              .concat(report().verdict.ranks.length ?
                  [[foldRanks(report().verdict.ranks), report().verdict.ranks.length]] : []),
          edges: waiting.flatMap((_, k) => [[k, k, 0]].concat(
              report().verdict.ranks.length ? [[waiting.length, k, 1]] : [])),
          plain: true};
}

function waitsSection() {
  let graph = data().waits.graph;
  const body = section('waits', 'Who waits for whom');
  if (graph.edges.length === 0) {
    graph = plainGraph();
  }
  if (graph.edges.length === 0) {
    add(body, [el('p', {}, 'No rank waits for another.')]);
    return;
  }
  const name = (c) => graph.plain ? c[0] : text(c[0]);
  const slotWords = (s) => (s.words || text(s.t)) + (s.n > 1 ? ` (${s.n} groups)` : '');
  const edges = waitEdges(graph);
  const blamed = new Set(report().verdict.ranks);
  const guilty = graph.classes.map((c) => expand(name(c)).some((r) => blamed.has(r)));
  const used = new Set(edges.flatMap((e) => [e.from, e.to]));
  const nodes = graph.slots.map((_, k) => 's' + k).concat(graph.classes.map((_, k) => 'c' + k))
      .filter((n) => used.has(n));
  const accused = nodes.filter((n) => n[0] === 'c' && guilty[n.slice(1)]);
  const columns = layers(nodes, edges, accused);
  const boxes = new Map();
  const box = (n) => {
    const k = Number(n.slice(1));
    const c = graph.classes[k], s = graph.slots[k];
    const node = n[0] === 'c' ?
        el('div', {class: 'node' + (guilty[k] ? ' guilty' : '')},
           (guilty[k] ? '! ' : '') + rankTitle(name(c), c[1])) :
        el('div', {class: 'node slot'}, slotWords(s), el('div', {class: 'note'},
                                                         `for ${duration(s.s)}`));
    if (n[0] === 'c') {
      node.append(' ', el('button', {class: 'link', 'aria-label': 'select its first rank',
          onclick: () => select({rank: ranges(name(c))[0][0]})}, 'select'));
    } else if (s.g >= 0) {
      node.append(el('button', {class: 'link', onclick: () => openGroup(s.g)}, 'its table'));
    }
    boxes.set(n, node);
    return node;
  };
  const chart = el('div', {class: 'waits'}, columns.map(
      (column) => el('div', {class: 'column'}, column.map(box))));
  const lines = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  lines.setAttribute('aria-hidden', 'true');
  chart.prepend(lines);
  const sentences = edges.map((e) => {
    const c = graph.classes[Number((e.from[0] === 'c' ? e.from : e.to).slice(1))];
    const s = graph.slots[Number((e.from[0] === 's' ? e.from : e.to).slice(1))];
    const some = s.of > 1 ? 'some of ' : '';
    return `${rankTitle(name(c), c[1])} ${ROLES[e.role][c[1] === 1 ? 0 : 1]} ${some}${slotWords(s)}`;
  });
  const left = graph.plain ? '' : [
    graph.all_slots > graph.slots.length ? `${graph.all_slots - graph.slots.length} operations` : '',
    graph.all_classes > graph.classes.length ?
        `${graph.all_classes - graph.classes.length} classes of ranks` : ''].filter(Boolean)
      .join(' and ');
  add(body, [el('p', {class: 'note'}, 'Solid: waits in; dashed: the operation waits for those who ' +
                'did not come, or came with another one. Where the waits end is on the right.'),
             el('div', {class: 'scroll'}, chart),
             left ? el('p', {class: 'note'}, `Not drawn: ${left}.`) : null,
             details('The same in words', () => el('ul', {}, sentences.map((s) => el('li', {}, s))))]);
  // A plot without a canvas: the lines follow the boxes.
  plots.push({lines: () => drawEdges(lines, chart, boxes, edges)});
}

function drawEdges(svg, chart, boxes, edges) {
  const origin = chart.getBoundingClientRect();
  svg.replaceChildren();
  edges.forEach((e) => {
    const a = boxes.get(e.from).getBoundingClientRect(), b = boxes.get(e.to).getBoundingClientRect();
    const forward = a.right <= b.left;
    const x1 = (forward ? a.right : a.left) - origin.left, x2 = (forward ? b.left : b.right) - origin.left;
    const same = Math.abs(a.left - b.left) < 4;
    const y1 = a.top + a.height * (forward ? 0.4 : 0.65) - origin.top;
    const y2 = b.top + b.height * (forward ? 0.4 : 0.65) - origin.top;
    const end = same ? b.left - origin.left : x2;
    const sag = forward ? 0 : Math.min(90, Math.abs(x2 - x1) / 4);  // backwards: below the boxes
    const bend = same ? -40 : (x2 - x1) / 2;
    const path = document.createElementNS('http://www.w3.org/2000/svg', 'path');
    path.setAttribute('d', same ?
        `M${a.left - origin.left},${y1} C${a.left - origin.left - 40},${y1} ${end - 40},${y2} ${end},${y2}` :
        `M${x1},${y1} C${x1 + bend},${y1 + sag} ${x2 - bend},${y2 + sag} ${x2},${y2}`);
    path.setAttribute('fill', 'none');
    path.setAttribute('stroke', e.role === 0 ? palette.wait : palette.blamed);
    path.setAttribute('stroke-width', '1.8');
    if (e.role !== 0) {
      path.setAttribute('stroke-dasharray', '5 4');
    }
    const tip = document.createElementNS('http://www.w3.org/2000/svg', 'path');
    const back = same || forward ? -7 : 7;
    tip.setAttribute('d', `M${end},${y2} l${back},-4 l0,8 z`);
    tip.setAttribute('fill', e.role === 0 ? palette.wait : palette.blamed);
    svg.append(path, tip);
  });
}
