// timeline.js - what a rank of each class did last, in time; the blamed ones first.

const TIME_ROW = 26, TIME_AXIS = 22;

// The time at which things went wrong, and a stretch around it in which operations can be told apart.
function timeAround(rows) {
  const open = rows.flatMap((r) => r.ops.filter((o) => o[1] === -1).map((o) => o[0]));
  const starts = rows.flatMap((r) => r.ops.map((o) => o[0])).sort((a, b) => a - b);
  if (starts.length === 0) {
    return null;
  }
  const center = open.length ? Math.min(...open) : starts[starts.length - 1];
  const before = starts.filter((t) => t <= center);
  const per = Math.max(1, Math.round(before.length / Math.max(1, starts.length) * 12)) * rows.length;
  const from = before[Math.max(0, before.length - per)];
  const length = Math.max(center - from, 1000);
  return [center - length, center + length * 0.6];
}

function timeAll(rows) {
  const times = rows.flatMap((r) => [...r.ops.map((o) => o[0]),
                                     ...r.ops.filter((o) => o[1] > 0).map((o) => o[0] + o[1]),
                                     r.dump, r.exit]).filter((t) => t >= 0);
  let from = Infinity, to = -Infinity;
  for (const t of times) {
    from = Math.min(from, t);
    to = Math.max(to, t);
  }
  const margin = Math.max(1000, (to - from) * 0.02);
  return times.length ? [from - margin, to + margin] : [0, 1e6];
}

function niceStep(length) {
  const rough = length / 6;
  const ten = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((k) => k * ten).find((s) => s >= rough);
}

function drawAxis(context, width, height, [from, to]) {
  const step = niceStep(to - from);
  context.textBaseline = 'top';
  context.textAlign = 'left';
  context.lineWidth = 1;
  for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
    const x = (t - from) / (to - from) * width;
    context.strokeStyle = palette.line;
    context.beginPath();
    context.moveTo(x, TIME_AXIS - 6);
    context.lineTo(x, height);
    context.stroke();
    context.fillStyle = palette.soft;
    if (x < width - 60) {
      context.fillText(`+${(t / 1e6).toFixed(step >= 1e6 ? 0 : step >= 1e5 ? 1 : step >= 1e3 ? 3 : 6)} s`, x + 3, 4);
    }
  }
}

function timelineSection() {
  const {rows, zero_us: zero} = data().waits.timeline;
  const body = section('timeline', 'Timeline');
  const around = timeAround(rows);
  if (around === null) {
    add(body, [el('p', {}, 'The evidence has no times of operations.')]);
    return;
  }
  let span = around;
  const blamed = new Set(report().verdict.ranks);
  const boxes = [];  // [x, y, w, row, op] of what is drawn
  const label = 150;
  const said = el('p', {class: 'said', 'aria-live': 'polite'});
  const left = (width) => width < 560 ? 70 : label;
  const canvas = plot('Operations over time; + and - zoom, arrow keys move',
      () => TIME_AXIS + rows.length * TIME_ROW + 6,
      (context, width, height) => {
        boxes.length = 0;
        const x0 = left(width), w = width - x0;
        context.save();
        context.translate(x0, 0);
        context.beginPath();
        context.rect(0, 0, w, height);
        context.clip();
        drawAxis(context, w, height, span);
        rows.forEach((row, k) => drawRow(context, row, k, w, span, boxes));
        context.restore();
        rows.forEach((row, k) => {
          const y = TIME_AXIS + k * TIME_ROW;
          context.fillStyle = blamed.has(row.rank) ? palette.blamed : palette.text;
          context.textAlign = 'left';
          context.textBaseline = 'middle';
          const words = (blamed.has(row.rank) ? '! ' : '') + `rank ${row.rank}` +
              (row.n > 1 ? ` of ${row.n} alike` : '');
          context.fillText(fit(context, words, x0 - 6), 0, y + TIME_ROW / 2);
          if (row.rank === view.rank) {
            context.strokeStyle = palette.focus;
            context.lineWidth = 2;
            context.strokeRect(1, y + 1, width - 2, TIME_ROW - 2);
          }
        });
      });
  const zoom = (factor, share) => {
    const middle = span[0] + (span[1] - span[0]) * share;
    const length = Math.min(Math.max((span[1] - span[0]) * factor, 10), 1e12);
    span = [middle - length * share, middle + length * (1 - share)];
    redraw(canvas);
  };
  const move = (share) => {
    const by = (span[1] - span[0]) * share;
    span = [span[0] + by, span[1] + by];
    redraw(canvas);
  };
  timelineMouse(canvas, {boxes, rows, said, zoom, move, left});
  canvas.addEventListener('keydown', (event) => {
    const action = {'+': () => zoom(0.6, 0.5), '=': () => zoom(0.6, 0.5), '-': () => zoom(1.6, 0.5),
                    ArrowLeft: () => move(-0.15), ArrowRight: () => move(0.15)}[event.key];
    if (action) {
      event.preventDefault();
      action();
    }
  });
  const set = (given) => { span = given; redraw(canvas); };
  add(body, [el('p', {class: 'note'}, 'One row for the ranks that stand alike in the waits, the ' +
      'blamed first. Bars that fade to the right are still in flight. ▼ evidence written, × process ' +
      `ended. Times from ${new Date(zero / 1000).toISOString()}, clocks of hosts set right where operations tell.`),
      el('p', {class: 'controls'}, [['around the fault', () => set(around)],
          ['all', () => set(timeAll(rows))], ['+', () => zoom(0.6, 0.5)], ['−', () => zoom(1.6, 0.5)]]
          .map(([words, act]) => [el('button', {onclick: act}, words), ' ']),
          el('span', {class: 'note'}, 'click the plot, then the wheel zooms; drag moves')),
      el('div', {class: 'plot'}, canvas), said,
      details('Last operations as a table', () => table(['rank', 'stands for', 'operation', 'state',
                                                         'begun after', 'lasted', 'at'],
          rows.flatMap((row) => row.ops.slice(-3).map((o) => [String(row.rank),
              rankTitle(text(row.for), row.n), opWords(o), text(o[6]), duration(o[0] / 1e6),
              o[1] >= 0 ? duration(o[1] / 1e6) : o[1] === -1 ? 'in flight' : 'not known',
              text(o[7])]))))]);
}

const opWords = (o) => `${text(o[3])} #${o[5]}` + (o[4] >= 0 ? ` of ${groupName(o[4])}` : '');

function drawRow(context, row, k, width, [from, to], boxes) {
  const y = TIME_AXIS + k * TIME_ROW + 5, h = TIME_ROW - 10;
  const xOf = (t) => (t - from) / (to - from) * width;
  const end = row.dump >= 0 ? xOf(row.dump) : width;
  let waits = false;  // operations issued behind the first in flight are ticks: bars would hide it
  for (const o of row.ops) {
    const x = xOf(o[0]);
    const open = o[1] === -1;
    if (open && waits) {
      context.fillStyle = palette.wait;
      context.fillRect(x, y + h, 2, 4);
      boxes.push([x - 2, y + h - 1, 6, 6, row, o]);
      continue;
    }
    waits = waits || open;
    const x2 = open ? Math.max(end, x + 8) : o[1] < 0 ? x + 3 : Math.max(xOf(o[0] + o[1]), x + 1.5);
    if (x2 < -10 || x > width + 10) {
      continue;
    }
    const a = Math.max(x, -10), b = Math.min(x2, width + 10);
    let fill = palette['wait-soft'];
    if (open) {
      fill = context.createLinearGradient(a, 0, b, 0);
      fill.addColorStop(0, palette.wait);
      fill.addColorStop(1, palette['wait-soft']);
    } else if (text(o[6]) === 'failed') {
      fill = palette['behind-soft'];
    }
    context.fillStyle = fill;
    context.fillRect(a, y, b - a, h);
    context.strokeStyle = palette.back;
    context.lineWidth = 0.5;
    context.strokeRect(a, y, b - a, h);
    if (b - Math.max(a, 0) > 34) {
      context.fillStyle = inkOn(open ? palette.wait : palette['wait-soft']);
      context.textAlign = 'left';
      context.textBaseline = 'middle';
      context.fillText(fit(context, opWords(o), b - Math.max(a, 0) - 6), Math.max(a, 0) + 3, y + h / 2 + 0.5);
    }
    boxes.push([a, y, b - a, h, row, o]);
  }
  context.fillStyle = palette.text;
  context.textAlign = 'center';
  context.textBaseline = 'middle';
  for (const [t, mark] of [[row.dump, '▼'], [row.exit, '×']]) {
    if (t >= 0 && xOf(t) >= -5 && xOf(t) <= width + 5) {
      context.fillText(mark, xOf(t), y + h / 2);
    }
  }
}

function timelineMouse(canvas, {boxes, rows, said, zoom, move, left}) {
  let drag = null;
  canvas.addEventListener('wheel', (event) => {
    if (document.activeElement !== canvas && !event.ctrlKey) {
      return;  // the page scrolls
    }
    event.preventDefault();
    const x0 = left(canvas.clientWidth);
    zoom(event.deltaY < 0 ? 0.8 : 1.25, Math.max(0, (at(event)[0] - x0) / (canvas.clientWidth - x0)));
  }, {passive: false});
  canvas.addEventListener('pointerdown', (event) => { drag = at(event)[0]; });
  canvas.addEventListener('pointerup', () => { drag = null; });
  canvas.addEventListener('pointerleave', () => { drag = null; });
  canvas.addEventListener('pointermove', (event) => {
    const [x, y] = at(event);
    if (drag !== null && event.buttons) {
      move((drag - x) / (canvas.clientWidth - left(canvas.clientWidth)));
      drag = x;
      return;
    }
    const inside = x - left(canvas.clientWidth);
    const found = [...boxes].reverse().find(([bx, by, bw, bh]) => inside >= bx && inside <= bx + bw &&
                                            y >= by && y <= by + bh);
    said.textContent = found ? clean(`rank ${found[4].rank}: ${opWords(found[5])}, ` +
        `${text(found[5][6])}` + (found[5][1] >= 0 ? `, ${duration(found[5][1] / 1e6)}` : '') +
        (text(found[5][7]) ? ` at ${text(found[5][7])}` : '')) : '';
  });
  canvas.addEventListener('click', (event) => {
    const k = Math.floor((at(event)[1] - TIME_AXIS) / TIME_ROW);
    if (rows[k] && at(event)[0] < left(canvas.clientWidth)) {
      select({rank: rows[k].rank});
    }
  });
}
