// core.js - the evidence, the selection, and helpers for elements and plots. Text of evidence
// becomes text nodes only.

const REPORT = JSON.parse(document.getElementById('report').textContent);
const DATA = JSON.parse(document.getElementById('data').textContent);
const JOBS = REPORT.jobs || [REPORT];

// The current selection: a job, and in it a rank, a group (its index), a set of ranks; null: none.
const view = {job: 0, rank: null, group: null, filter: null};
const listeners = [];  // called when rank, group or filter change
const plots = [];      // redrawn when size or theme change

const report = () => JOBS[view.job];
const data = () => DATA[view.job];
const text = (i) => data().s[i];

const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
// Makes control characters and those that change the direction of text visible.
function clean(value) {
  return String(value).replace(
      HIDDEN, (c) => '\\u' + c.charCodeAt(0).toString(16).padStart(4, '0'));
}

// el('p', {class: 'note', onclick: f}, 'text', child, ...)
function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith('on')) {
      node.addEventListener(name.slice(2), value);
    } else if (value === true) {
      node.setAttribute(name, '');
    } else if (value !== false && value !== null && value !== undefined) {
      node.setAttribute(name, clean(value));
    }
  }
  add(node, children);
  return node;
}

function add(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined) {
      node.append(child instanceof Node ? child : document.createTextNode(clean(child)));
    }
  }
}

// ---- ranks

const folded = new Map();
// "0-3,7" -> [[0, 3], [7, 7]]
function ranges(fold) {
  if (!folded.has(fold)) {
    folded.set(fold, fold === '' ? [] : fold.split(',').map((part) => {
      const [first, last] = part.split('-').map(Number);
      return [first, last === undefined ? first : last];
    }));
  }
  return folded.get(fold);
}

function expand(fold) {
  const out = [];
  for (const [first, last] of ranges(fold)) {
    for (let r = first; r <= last; ++r) {
      out.push(r);
    }
  }
  return out;
}

const holds = (fold, rank) => ranges(fold).some(([a, b]) => a <= rank && rank <= b);

// "ranks 0-3,7"; long lists are cut.
function rankWords(fold, most = 48) {
  const plural = /[,-]/.test(fold);
  const cut = fold.length > most ? fold.slice(0, fold.lastIndexOf(',', most - 4)) + ',...' : fold;
  return (plural ? 'ranks ' : 'rank ') + cut;
}

// The words for a list of ranks; a list that is cut gets its count.
function rankTitle(fold, n) {
  const words = rankWords(fold);
  return words.endsWith('...') || n > 8 ? `${words} (${n})` : words;
}

// The state of each rank, in the order of the report; then the ranks without evidence.
let people = [];
let person = new Map();  // rank -> entry of people
let waitKinds = [];      // operations that ranks wait in, by operation, kind of group and call site

// "a", "b", ...: the letter of the operation that a rank waits in
const waitLetter = (kind) => kind < 26 ? String.fromCharCode(97 + kind) : 'w';

const STATES = {
  blamed: {mark: '!', words: 'blamed'},
  wait: {mark: 'w', words: 'waiting'},
  gone: {mark: '×', words: 'ended'},
  run: {mark: '', words: 'does not wait', several: 'do not wait'},
  none: {mark: '?', words: 'no evidence'},
};

function findPeople() {
  const verdict = report().verdict;
  const blamed = new Set(verdict.ranks);
  const waits = new Map();
  waitKinds = [];
  const kinds = new Map();
  for (const w of verdict.waiting) {
    const words = `${w.op} of ${w.desc || w.group}` + (w.site ? ` at ${siteWords(w.site)}` : '');
    if (!kinds.has(words)) {
      kinds.set(words, waitKinds.length);
      waitKinds.push({words, n: 0});
    }
    const kind = kinds.get(words);
    for (const r of w.ranks) {
      if (!waits.has(r)) {
        ++waitKinds[kind].n;
        waits.set(r, {kind, seconds: 0});
      }
      waits.get(r).seconds = Math.max(waits.get(r).seconds, w.seconds);
    }
  }
  people = report().ranks.map((r) => ({
    rank: r.rank, host: r.host, pid: r.pid, report: r, seconds: waits.get(r.rank)?.seconds || 0,
    kind: waits.get(r.rank)?.kind ?? -1,
    state: blamed.has(r.rank) ? 'blamed' : r.state !== 'runs' ? 'gone' :
        waits.has(r.rank) ? 'wait' : 'run',
  }));
  for (const rank of report().input.missing_ranks) {
    people.push({rank, host: '', pid: 0, report: null, seconds: 0, kind: -1,
                 state: blamed.has(rank) ? 'blamed' : 'none'});
  }
  people.sort((a, b) => a.rank - b.rank);
  person = new Map(people.map((p) => [p.rank, p]));
}

function rankLine(rank) {
  const p = person.get(rank);
  if (!p) {
    return `rank ${rank}`;
  }
  const r = p.report;
  let out = `rank ${rank}`;
  out += p.host ? `, host ${p.host}, pid ${p.pid}` : '';
  out += `: ${STATES[p.state].words}`;
  out += p.seconds ? ` for ${duration(p.seconds)}` : '';
  out += r && r.state !== 'runs' ? `; ${r.state}` : '';
  out += r && r.last_op ? `; last issued ${r.last_op}` : '';
  out += r && r.site ? ` at ${siteWords(r.site)}` : '';
  return out;
}

function siteWords(site) {
  return site ? `${site.file}:${site.line} ${site.function}` +
      (site.within ? ` (in ${site.within})` : '') : '';
}

function groupName(g) {
  const group = report().groups[g];
  return group ? (group.desc || group.name) : '';
}

function groupTitle(g) {
  const group = report().groups[g];
  return `${group.desc ? group.desc + ' ' : ''}(${group.name})`;
}

// A duration; number and unit stay on one line.
function duration(seconds) {
  const s = Math.abs(seconds);
  const [n, unit] = s >= 100 ? [seconds.toFixed(0), 's'] : s >= 1 ? [seconds.toFixed(1), 's'] :
      s >= 1e-3 ? [(seconds * 1e3).toFixed(s >= 0.1 ? 0 : 1), 'ms'] :
      [(seconds * 1e6).toFixed(0), 'µs'];
  return s === 0 ? '0' : `${n}\u00a0${unit}`;
}

// ---- the selection

function select(change) {
  Object.assign(view, change);
  writeLink();
  for (const f of listeners) {
    f();
  }
  redraw();
}

const passes = (rank) => view.filter === null || view.filter.has(rank);

// "3,17-20,n7": ranks, and hosts by a prefix of their names. null: everything.
function readFilter(input) {
  const parts = input.split(/[\s,]+/).filter(Boolean);
  if (parts.length === 0) {
    return null;
  }
  const out = new Set();
  for (const part of parts) {
    const numbers = /^(\d+)(?:-(\d+))?$/.exec(part);
    const [first, last] = numbers ? [Number(numbers[1]), Number(numbers[2] ?? numbers[1])] : [];
    const exact = people.some((p) => p.host === part);
    for (const p of people) {
      if (numbers ? first <= p.rank && p.rank <= last :
              exact ? p.host === part : p.host.startsWith(part)) {
        out.add(p.rank);
      }
    }
  }
  return out;
}

// #rank=7&group=tp
function writeLink() {
  const parts = [];
  if (view.rank !== null) {
    parts.push(`rank=${view.rank}`);
  }
  if (view.group !== null) {
    parts.push(`group=${encodeURIComponent(report().groups[view.group].name)}`);
  }
  const link = parts.length ? '#' + parts.join('&') : '';
  if (link !== location.hash && (link || /^#(rank|group)=/.test(location.hash))) {
    try {
      history.replaceState(null, '', link || location.pathname + location.search);
    } catch (error) {
      location.hash = link;
    }
  }
}

function readLink() {
  const given = new URLSearchParams(location.hash.slice(1));
  const rank = given.has('rank') ? Number(given.get('rank')) : null;
  const wanted = given.get('group');
  const group = wanted === null ? -1 :
      report().groups.findIndex((g) => g.name === wanted || g.desc === wanted);
  return {rank: person.has(rank) ? rank : null, group: group < 0 ? null : group};
}

// ---- sections and plots

function section(id, title, ...intro) {
  const body = el('section', {id, tabindex: -1}, el('h2', {}, title),
                  intro.length ? el('p', {class: 'note'}, ...intro) : null);
  document.getElementById('sections').append(body);
  document.getElementById('nav').append(el('a', {href: '#' + id}, title));
  return body;
}

function table(head, rows, attributes) {
  return el('div', {class: 'scroll'}, el('table', attributes || {},
      el('thead', {}, el('tr', {}, head.map((h) => el('th', {scope: 'col'}, h)))),
      el('tbody', {}, rows.map((row) => el('tr', {}, row.map((c) => el('td', {}, c)))))));
}

// Filled when first opened, so that large tables cost nothing before.
function details(summary, fill, attributes) {
  const node = el('details', attributes || {}, el('summary', {}, summary));
  let filled = false;
  const open = () => {
    if (node.open && !filled) {
      filled = true;
      add(node, [fill()]);
    }
  };
  node.addEventListener('toggle', open);
  open();
  return node;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue('--' + name)
    .trim();

// A canvas of its container's width, focusable if it handles keys: draw(context, width, height).
function plot(label, heightOf, draw, keys = false) {
  const canvas = el('canvas', {role: 'img', 'aria-label': label, tabindex: keys ? 0 : null});
  const one = {canvas, heightOf, draw, width: 0};
  plots.push(one);
  return canvas;
}

let palette = {};
function readPalette() {
  for (const name of ['text', 'soft', 'line', 'back', 'card', 'run', 'wait', 'wait-soft', 'blamed',
                      'gone', 'behind', 'behind-soft', 'even', 'focus']) {
    palette[name] = colour(name);
  }
}

// Redraws all plots, or the one of `canvas`.
function redraw(canvas) {
  for (const one of plots) {
    if (canvas instanceof Node && one.canvas !== canvas) {
      continue;
    }
    if (one.lines) {
      one.lines();
      continue;
    }
    const width = one.canvas.parentElement ? one.canvas.parentElement.clientWidth : 0;
    if (width < 20) {
      continue;
    }
    const height = one.heightOf(width);
    const ratio = Math.min(window.devicePixelRatio || 1, 3);
    one.canvas.width = Math.round(width * ratio);
    one.canvas.height = Math.round(height * ratio);
    one.canvas.style.width = width + 'px';
    one.canvas.style.height = height + 'px';
    const context = one.canvas.getContext('2d');
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = '11px system-ui, sans-serif';
    one.draw(context, width, height);
  }
}

// The position of a mouse event on its canvas.
function at(event) {
  const box = event.currentTarget.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

// Black or white, whichever is legible on "#rrggbb" or "rgb(r,g,b)".
function inkOn(fill) {
  const parts = fill[0] === '#' ? [0, 1, 2].map((i) => part(fill, i)) :
      fill.match(/\d+/g).map(Number);
  const light = parts.map((v) => (v / 255) ** 2.2);
  return 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2] > 0.19 ? '#000000' : '#ffffff';
}

const part = (c, i) => parseInt(c.slice(1 + 2 * i, 3 + 2 * i), 16);
// Interpolates between two colours "#rrggbb".
function between(a, b, share) {
  const s = Math.max(0, Math.min(1, share));
  return 'rgb(' + [0, 1, 2].map((i) => Math.round(part(a, i) + (part(b, i) - part(a, i)) * s))
      .join(',') + ')';
}
