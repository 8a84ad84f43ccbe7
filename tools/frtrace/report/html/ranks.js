// ranks.js - one cell per rank: its state. Ordered by host, or by the mesh that the groups form.

// Families of groups that partition all ranks evenly: [{name, position: Map(rank -> place)}]
function families() {
  const all = new Map();
  report().groups.forEach((g) => {
    if (g.size > 1 && g.size < people.length) {
      const key = `${g.desc || g.name}/${g.size}`;
      all.set(key, [...(all.get(key) || []), g]);
    }
  });
  const out = [];
  for (const groups of all.values()) {
    const size = groups[0].size;
    if (groups.length * size !== people.length) {
      continue;
    }
    const position = new Map();
    for (const g of groups) {
      expand(g.ranks).forEach((r, i) => position.set(r, i));
    }
    if (position.size === people.length) {
      out.push({name: groups[0].desc || groups[0].name, size, position});
    }
  }
  return out.sort((a, b) => a.size - b.size);
}

// Axes whose coordinates identify every rank and leave no place empty; null: none.
function inferMesh() {
  const axes = [];
  let places = 1;
  for (const f of families()) {
    const pairs = new Set(people.map(
        (p) => [...axes, f].map((a) => a.position.get(p.rank)).join()));
    if (places * f.size <= people.length && pairs.size === places * f.size) {
      axes.push(f);
      places *= f.size;
    }
  }
  return axes.length > 1 && places === people.length ? axes : null;
}

// Blocks of ranks: [{label, rows: [[rank, ...], ...]}]
function hostBlocks() {
  const hosts = new Map();
  for (const p of people) {
    const name = p.host || 'no evidence';
    if (!hosts.has(name)) {
      hosts.set(name, []);
    }
    hosts.get(name).push(p.rank);
  }
  const wrap = hosts.size === 1 ? 64 : 16;
  return [...hosts].map(([label, ranks]) => {
    const rows = [];
    for (let i = 0; i < ranks.length; i += wrap) {
      rows.push(ranks.slice(i, i + wrap));
    }
    return {label, rows};
  });
}

function meshBlocks(axes) {
  const [x, y, ...rest] = axes;
  const blocks = new Map();
  for (const p of people) {
    const key = rest.map((a) => `${a.name} ${a.position.get(p.rank)}`).join(', ');
    if (!blocks.has(key)) {
      blocks.set(key, {label: key, rows: []});
    }
    const rows = blocks.get(key).rows;
    const j = y.position.get(p.rank);
    rows[j] = rows[j] || [];
    rows[j][x.position.get(p.rank)] = p.rank;
  }
  return [...blocks.values()];
}

// Positions of all cells: [{rank, x, y}], labels, the height; cells shrink until lines fit. With
// very many ranks each line of blocks has one label, before it.
function layOut(blocks, width) {
  const count = people.length;
  const many = count > 2048;
  const left = many ? 76 : 0, above = many ? 0 : 14, between = many ? 4 : 8;
  let size = count <= 64 ? 34 : count <= 256 ? 24 : many ? 6 : 15;
  const widest = Math.max(...blocks.map((b) => Math.max(...b.rows.map((r) => r.length))));
  size = Math.max(3, Math.min(size, Math.floor((width - left - 2) / widest)));
  const cells = [], labels = [];
  let x = left, y = many ? 4 : 0, lowest = 0;
  for (const block of blocks) {
    const columns = Math.max(...block.rows.map((r) => r.length));
    const w = columns * size;
    if (x > left && x + w > width) {
      x = left;
      y = lowest + (many ? 4 : 6);
    }
    if (!many || x === left) {
      labels.push({x: many ? 0 : x, y, w: many ? left - 6 : w, label: block.label, many});
    }
    block.rows.forEach((row, j) => row.forEach((rank, i) => {
      cells.push({rank, x: x + i * size, y: y + above + j * size});
    }));
    lowest = Math.max(lowest, y + above + block.rows.length * size);
    x += w + between;
  }
  return {cells, labels, size, height: lowest + 4};
}

function hatch(context, x, y, size) {
  context.beginPath();
  context.moveTo(x + 1, y + size - 1);
  context.lineTo(x + size - 1, y + 1);
  context.stroke();
}

// Three shades in rotation; letters distinguish more than three.
function waitColour(kind) {
  return between(palette.wait, palette['wait-soft'], (kind % 3) / 2);
}

function drawCell(context, cell, size) {
  const p = person.get(cell.rank);
  const {x, y} = cell;
  const s = size - 1;
  const fill = {
    blamed: palette.blamed,
    wait: waitColour(p.kind),
    gone: palette.gone, run: palette.run, none: palette.back,
  }[p.state];
  context.globalAlpha = passes(cell.rank) ? 1 : 0.18;
  context.fillStyle = fill;
  context.fillRect(x, y, s, s);
  context.strokeStyle = palette.soft;
  context.lineWidth = 1;
  if (p.state === 'none') {
    context.strokeRect(x + 0.5, y + 0.5, s - 1, s - 1);
    hatch(context, x, y, s);
  } else if (p.state === 'gone') {
    context.strokeStyle = palette.card;
    hatch(context, x, y, s);
  }
  if (size >= 12) {
    context.fillStyle = inkOn(fill);
    context.textAlign = 'center';
    context.textBaseline = 'middle';
    const mark = p.state === 'wait' ? waitLetter(p.kind) : STATES[p.state].mark;
    const label = size >= 24 ? String(cell.rank) : mark;
    context.fillText(label, x + s / 2, y + s / 2 + (size >= 30 ? -5 : 0.5));
    if (size >= 30) {
      context.fillText(mark, x + s / 2, y + s / 2 + 8);
    }
  } else if (p.state === 'blamed') {  // larger than the others
    context.strokeStyle = palette.blamed;
    context.lineWidth = 2;
    context.strokeRect(x - 2, y - 2, size + 3, size + 3);
  }
  context.globalAlpha = 1;
}

function drawRanks(context, placed, cursor) {
  context.fillStyle = palette.soft;
  context.textAlign = 'left';
  context.textBaseline = 'top';
  let below = 0;
  for (const l of placed.labels) {
    if (!l.many || l.y >= below) {  // lines of cells may be closer than lines of text
      context.fillText(fit(context, clean(l.label), Math.max(l.w, 20)), l.x, l.y + (l.many ? -2 : 1));
      below = l.y + 20;
    }
  }
  for (const cell of placed.cells) {
    drawCell(context, cell, placed.size);
  }
  for (const [rank, width] of [[view.rank, 3], [cursor, 1.5]]) {
    const cell = rank === null ? null : placed.cells.find((c) => c.rank === rank);
    if (cell) {
      context.strokeStyle = palette.focus;
      context.lineWidth = width;
      context.strokeRect(cell.x - 1, cell.y - 1, placed.size + 1, placed.size + 1);
    }
  }
}

function ranksSection() {
  const body = section('ranks', 'Ranks');
  const mesh = inferMesh();
  let blocks = hostBlocks();
  let placed = null, cursor = null;
  const said = el('p', {class: 'said', id: 'rank-line', 'aria-live': 'polite'});
  const canvas = plot('One cell per rank; arrow keys move, Enter selects',
      (width) => (placed = layOut(blocks, width)).height,
      (context) => drawRanks(context, placed, cursor), true);
  const hit = (event) => {
    const [x, y] = at(event);
    return placed && placed.cells.find((c) => x >= c.x && x < c.x + placed.size &&
                                       y >= c.y && y < c.y + placed.size);
  };
  const say = () => said.textContent =
      clean(cursor !== null ? rankLine(cursor) : view.rank !== null ? rankLine(view.rank) : ' ');
  canvas.addEventListener('mousemove', (event) => {
    const cell = hit(event);
    if ((cell ? cell.rank : null) !== cursor) {
      cursor = cell ? cell.rank : null;
      say();
      redraw(canvas);
    }
  });
  canvas.addEventListener('click', (event) => {
    const cell = hit(event);
    select({rank: cell && cell.rank !== view.rank ? cell.rank : null});
  });
  canvas.addEventListener('keydown', (event) => {
    const next = moved(event.key, placed, cursor ?? view.rank);
    if (next !== undefined) {
      event.preventDefault();
      cursor = next;
      say();
      redraw(canvas);
    } else if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      select({rank: cursor});
    }
  });
  canvas.addEventListener('blur', () => { cursor = null; });
  if (mesh) {
    const choice = el('select', {'aria-label': 'Order', onchange: () => {
      blocks = choice.value === 'mesh' ? meshBlocks(mesh) : hostBlocks();
      redraw();
    }}, el('option', {value: 'host'}, 'by host'),
        el('option', {value: 'mesh'}, 'by mesh: ' + mesh.map((a) => `${a.name} ${a.size}`)
            .join(' × ')));
    add(body, [el('p', {}, el('label', {}, 'Order ', choice))]);
  }
  const counts = Object.keys(STATES).map((state) => {
    const n = people.filter((p) => p.state === state).length;
    const {words, several} = STATES[state];
    return n ? el('span', {class: 'key s-' + state}, `${n} ${n > 1 && several || words}`) : null;
  });
  const card = el('div', {id: 'rank-card'});
  listeners.push(() => {
    say();
    card.replaceChildren(...(view.rank === null ? [] : [rankCard(view.rank)]));
  });
  const kinds = waitKinds.slice(0, 12).map((k, i) => el('li', {},
      el('b', {}, waitLetter(i)), ` ${k.n} ${k.n === 1 ? 'waits' : 'wait'} in ${k.words}`));
  add(body, [el('p', {class: 'legend'}, counts), kinds.length ? el('ul', {class: 'kinds'}, kinds) : null, el('div', {class: 'plot'}, canvas), said, card,
             details('Table of the ranks', rankTable)]);
}

// Text cut to fit; "" if not even a few letters do.
function fit(context, long, width) {
  const words = long.slice(0, 240);  // names may be of any length
  if (context.measureText(words).width <= width) {
    return words;
  }
  let n = words.length;
  while (n > 0 && context.measureText(words.slice(0, n) + '…').width > width) {
    --n;
  }
  return n > 2 ? words.slice(0, n) + '…' : '';
}

// The rank that an arrow key leads to; undefined: no such key.
function moved(key, placed, from) {
  const step = {ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1]}[key];
  if (key === 'Home' || key === 'End') {
    return placed.cells[key === 'Home' ? 0 : placed.cells.length - 1].rank;
  }
  if (!step || !placed) {
    return undefined;
  }
  const index = placed.cells.findIndex((c) => c.rank === from);
  if (index < 0) {
    return placed.cells[0].rank;
  }
  const own = placed.cells[index];
  if (step[0] !== 0) {
    return (placed.cells[index + step[0]] || own).rank;
  }
  let best = own, least = Infinity;  // the nearest cell above or below
  for (const c of placed.cells) {
    const down = (c.y - own.y) * step[1];
    const far = down + Math.abs(c.x - own.x) * 3;
    if (down > 0 && far < least) {
      [best, least] = [c, far];
    }
  }
  return best.rank;
}

// Counters of a member: [enqueued, started, completed], -1: no evidence; null: not a member.
function counters(g, rank) {
  const group = report().groups[g];
  let place = 0;
  for (const [first, last] of ranges(group.ranks)) {
    if (first <= rank && rank <= last) {
      return data().frontiers[g].map((runs) => valueAt(runs, place + rank - first));
    }
    place += last - first + 1;
  }
  return null;
}

function valueAt(runs, place) {
  for (let i = 0; i < runs.length; i += 2) {
    if (place < runs[i + 1]) {
      return runs[i];
    }
    place -= runs[i + 1];
  }
  return -1;
}

function rankCard(rank) {
  const p = person.get(rank);
  const rows = [];
  report().groups.forEach((group, g) => {
    const own = counters(g, rank);
    if (own) {
      rows.push([el('button', {class: 'link', onclick: () => openGroup(g)}, groupTitle(g)),
                 `${group.size}`, ...own.map((v) => v < 0 ? 'no evidence' : String(v)),
                 String(group.enqueued[1])]);
    }
  });
  const r = p.report;
  return el('div', {class: 'card'}, el('h3', {}, `rank ${rank}`,
      el('button', {class: 'small', onclick: () => select({rank: null})}, 'Deselect')),
      el('p', {}, rankLine(rank)),
      r && r.note ? el('p', {}, `last note: ${r.note}`) : null,
      r ? el('p', {class: 'note'}, `${r.source} ${r.file}` + (r.reason ? `, ${r.reason}` : ''))
        : el('p', {class: 'note'}, 'Nothing of this rank was read.'),
      rows.length ? table(['group', 'size', 'enqueued', 'started', 'completed',
                           'enqueued by any member'], rows) : null);
}

function rankTable() {
  const most = 2000;
  const shown = people.filter((p) => passes(p.rank));
  const rows = shown.slice(0, most).map((p) => [
    String(p.rank), p.host, p.pid ? String(p.pid) : '', STATES[p.state].words +
        (p.seconds ? ` for ${duration(p.seconds)}` : ''),
    p.report ? p.report.last_op : '', p.report ? siteWords(p.report.site) : '']);
  return el('div', {}, table(['rank', 'host', 'pid', 'state', 'last issued', 'at'], rows),
      shown.length > most ? el('p', {}, `and ${shown.length - most} more: use the filter`) : null);
}
