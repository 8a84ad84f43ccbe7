// timeline.js - the last operations of a rank of each class, by time; blamed ranks first.

const TIME_ROW = 26, TIME_AXIS = 22;

// A range of time around the fault, short enough to tell operations apart.
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
                                     r.warn, r.dump, r.exit]).filter((t) => t >= 0);
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

const timeLeft = (width) => width < 560 ? 70 : 150;  // where bars begin, right of the ranks

// chart: {rows, span, boxes: [x, y, w, h, row, operation] of drawn bars}
function drawTimes(chart, context, width, height) {
  const x0 = timeLeft(width), w = width - x0;
  const blamed = new Set(report().verdict.ranks);
  chart.boxes.length = 0;
  context.save();
  context.translate(x0, 0);
  context.beginPath();
  context.rect(0, 0, w, height);
  context.clip();
  drawAxis(context, w, height, chart.span);
  chart.rows.forEach((row, k) => drawRow(context, row, k, w, chart.span, chart.boxes));
  context.restore();
  chart.rows.forEach((row, k) => {
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
}

function timelineSection() {
  const {rows, zero_us: zero} = data().waits.timeline;
  const body = section('timeline', 'Timeline');
  const around = timeAround(rows);
  if (around === null) {
    add(body, [el('p', {}, 'The evidence has no times of operations.')]);
    return;
  }
  const chart = {rows, span: around, boxes: []};
  const said = el('p', {class: 'said', 'aria-live': 'polite'});
  const canvas = plot('Operations over time; + and - zoom, arrow keys move',
      () => TIME_AXIS + rows.length * TIME_ROW + 6, drawTimes.bind(null, chart), true);
  const set = (given) => { chart.span = given; redraw(canvas); };
  const zoom = (factor, share) => {
    const [from, to] = chart.span;
    const middle = from + (to - from) * share;
    const length = Math.min(Math.max((to - from) * factor, 10), 1e12);
    set([middle - length * share, middle + length * (1 - share)]);
  };
  const move = (share) => {
    const by = (chart.span[1] - chart.span[0]) * share;
    set(chart.span.map((t) => t + by));
  };
  timelineMouse(canvas, chart, said, zoom, move);
  canvas.addEventListener('keydown', (event) => {
    const action = {'+': () => zoom(0.6, 0.5), '=': () => zoom(0.6, 0.5), '-': () => zoom(1.6, 0.5),
                    ArrowLeft: () => move(-0.15), ArrowRight: () => move(0.15)}[event.key];
    if (action) {
      event.preventDefault();
      action();
    }
  });
  const buttons = {'around the fault': () => set(around), 'all': () => set(timeAll(rows)),
                   '+': () => zoom(0.6, 0.5), '−': () => zoom(1.6, 0.5)};
  add(body, [el('p', {class: 'note'}, 'One row for the ranks that stand alike in the waits, the ' +
      'blamed first. Bars that fade to the right are still in flight. ' + timeLegend(rows) +
      `Times from ${new Date(zero / 1000).toISOString()}, clocks of hosts set right where operations tell.`),
      el('p', {class: 'controls'}, Object.entries(buttons).map(
          ([words, act]) => [el('button', {onclick: act}, words), ' ']),
          el('span', {class: 'note'}, 'click the plot, then the wheel zooms; drag moves')),
      el('div', {class: 'plot'}, canvas), said,
      details('Last operations as a table', () => lastOperations(rows)),
      details('Warnings, dumps and ends as a table', () => timeMarks(rows))]);
}

// Marks of a row besides operations: [its key, mark, words]
const TIME_MARKS = [['warn', '△', 'warned: no progress'], ['dump', '▼', 'evidence written'],
                    ['exit', '×', 'process ended, or its last sign']];

const timeLegend = (rows) => TIME_MARKS.filter(([key]) => rows.some((row) => row[key] >= 0))
    .map(([, mark, words]) => `${mark} ${words}. `).join('');

function timeMarks(rows) {
  return table(['rank', 'stands for', 'what', 'after'], rows.flatMap((row) => TIME_MARKS
      .filter(([key]) => row[key] >= 0).map(([key, mark, words]) => [String(row.rank),
          rankTitle(text(row.for), row.n), `${mark} ${words}`, seconds(row[key])])));
}

const seconds = (us) => `${(us / 1e6).toFixed(3)} s`;

function lastOperations(rows) {
  return table(['rank', 'stands for', 'operation', 'state', 'begun after', 'lasted', 'at'],
      rows.flatMap((row) => row.ops.slice(-3).map((o) => [String(row.rank),
          rankTitle(text(row.for), row.n), opWords(o), text(o[6]), seconds(o[0]),
          o[1] >= 0 ? duration(o[1] / 1e6) : o[1] === -1 ? 'in flight' : 'not known',
          text(o[7])])));
}

const opWords = (o) => `${text(o[3])} #${o[5]}` + (o[4] >= 0 ? ` of ${groupName(o[4])}` : '');

function drawRow(context, row, k, width, [from, to], boxes) {
  const y = TIME_AXIS + k * TIME_ROW + 5, h = TIME_ROW - 10;
  const xOf = (t) => (t - from) / (to - from) * width;
  const last = Math.max(row.dump, row.exit);  // the state after that is unknown
  const end = last >= 0 ? xOf(last) : width;
  let waits = false;  // operations queued behind the first in flight are ticks: bars would hide it
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
  context.textAlign = 'center';
  context.textBaseline = 'middle';
  for (const [key, mark] of TIME_MARKS) {
    const x = xOf(row[key]);
    if (row[key] >= 0 && x >= -5 && x <= width + 5) {
      context.strokeStyle = palette.back;  // bars and their words lie below
      context.lineWidth = 3;
      context.strokeText(mark, x, y + h / 2);
      context.fillStyle = palette.text;
      context.fillText(mark, x, y + h / 2);
      boxes.push([x - 6, y, 12, h, row, null, key]);
    }
  }
}

function timelineMouse(canvas, chart, said, zoom, move) {
  let drag = null;
  canvas.addEventListener('wheel', (event) => {
    if (document.activeElement !== canvas && !event.ctrlKey) {
      return;  // the page scrolls
    }
    event.preventDefault();
    const x0 = timeLeft(canvas.clientWidth);
    zoom(event.deltaY < 0 ? 0.8 : 1.25, Math.max(0, (at(event)[0] - x0) / (canvas.clientWidth - x0)));
  }, {passive: false});
  canvas.addEventListener('pointerdown', (event) => { drag = at(event)[0]; });
  canvas.addEventListener('pointerup', () => { drag = null; });
  canvas.addEventListener('pointerleave', () => { drag = null; });
  canvas.addEventListener('pointermove', (event) => {
    const [x, y] = at(event);
    if (drag !== null && event.buttons) {
      move((drag - x) / (canvas.clientWidth - timeLeft(canvas.clientWidth)));
      drag = x;
      return;
    }
    const inside = x - timeLeft(canvas.clientWidth);
    const found = [...chart.boxes].reverse().find(([bx, by, bw, bh]) => inside >= bx && inside <= bx + bw &&
                                            y >= by && y <= by + bh);
    said.textContent = found ? clean(boxWords(found)) : '';
  });
  canvas.addEventListener('click', (event) => {
    const k = Math.floor((at(event)[1] - TIME_AXIS) / TIME_ROW);
    if (chart.rows[k] && at(event)[0] < timeLeft(canvas.clientWidth)) {
      select({rank: chart.rows[k].rank});
    }
  });
}

function boxWords([, , , , row, o, key]) {
  if (o === null) {
    return `rank ${row.rank}: ${TIME_MARKS.find((m) => m[0] === key)[2]}, after ${seconds(row[key])}`;
  }
  return `rank ${row.rank}: ${opWords(o)}, ${text(o[6])}` +
      (o[1] >= 0 ? `, ${duration(o[1] / 1e6)}` : '') + (text(o[7]) ? ` at ${text(o[7])}` : '');
}
