// history.js - the slots around the divergence: per group a row for each class of ranks with equal
// history.

const GLYPHS = [[/^(all_?reduce|allreduce)/, 'AR'], [/reduce_?scatter/, 'RS'], [/all_?gather/, 'AG'],
                [/all_?to_?all/, 'A2A'], [/broadcast/, 'BC'], [/barrier/, 'BAR'], [/^reduce/, 'RED'],
                [/^gather/, 'GA'], [/^scatter/, 'SC'], [/send/, 'SND'], [/recv/, 'RCV']];
const glyphOf = (op) => (GLYPHS.find(([form]) => form.test(op)) || [0, op.slice(0, 3)])[1];
const MARKS = {completed: '✓', started: '▶', enqueued: '…', issued: '…', waiting: '…', idle: '…',
               failed: '✗', released: '○'};
const CLASSES = {completed: 'completed', released: 'completed', failed: 'failed'};

// The glyph of a cell, and its words.
function cellWords(table, row, cells) {
  const what = cells[2 * row] < 0 ? text(table.o[row]) : text(cells[2 * row]);
  const state = text(cells[2 * row + 1]);
  const seq = table.f + row;
  if (what === '') {
    return {glyph: state === '-' ? '—' : '·', mark: '', style: state === '-' ? 'never' : 'blank',
            words: `#${seq}: ${state === '-' ? 'never issued' : state}`};
  }
  return {glyph: glyphOf(what), mark: MARKS[state] || '', style: CLASSES[state] || 'open',
          words: `#${seq}: ${what}, ${state}`};
}

// The last slot before classes differ; -1: they differ in the first, or nowhere.
function lastCommon(table) {
  return firstDifference(table) - 1;
}

function firstDifference(table) {
  for (let row = 0; row < table.o.length; ++row) {
    let told = null;
    for (const c of table.c) {
      const {words, style} = cellWords(table, row, c.x);
      if (style === 'blank') {
        continue;
      }
      if (told !== null && told !== words) {
        return row;
      }
      told = words;
    }
  }
  return 0;
}

// Cells that differ from the majority of ranks in this row.
function oddCells(table, row) {
  const votes = new Map();
  for (const c of table.c) {
    const key = c.x[2 * row] + '/' + (text(c.x[2 * row + 1]) === '-');
    votes.set(key, (votes.get(key) || 0) + c.n);
  }
  const most = Math.max(...votes.values());
  return table.c.map((c) => {
    const key = c.x[2 * row] + '/' + (text(c.x[2 * row + 1]) === '-');
    return votes.size > 1 && votes.get(key) < most && cellWords(table, row, c.x).style !== 'blank';
  });
}

function historyTable(table) {
  const common = lastCommon(table);
  const said = el('p', {class: 'said mono', 'aria-live': 'polite'});
  const odd = table.o.map((_, row) => oddCells(table, row));
  const head = table.o.map((_, row) => el('th', {scope: 'col',
      class: row === common && table.d ? 'last-common' : ''}, `#${table.f + row}`));
  const rows = table.c.map((c, k) => {
    const cells = table.o.map((_, row) => {
      const {glyph, mark, style, words} = cellWords(table, row, c.x);
      const say = () => { said.textContent = clean(rankTitle(text(c.r), c.n) + ' ' + words); };
      return el('td', {}, el('button', {class: style + (odd[row][k] ? ' odd' : ''), title: words,
                                        'aria-label': words, onclick: say, onfocus: say},
                             el('b', {}, glyph), mark));
    });
    const who = el('th', {scope: 'row', class: 'who' + (c.b ? ' blamed-row' : '')},
                   (c.b ? '! ' : '') + rankTitle(text(c.r), c.n), ' ',
                   c.n > 1 && text(c.r).length > 48 ?
                       details('all', () => el('p', {}, text(c.r))) : null,
                   el('button', {class: 'link', onclick: () => select({rank: ranges(text(c.r))[0][0]}),
                                 'aria-label': `select rank ${ranges(text(c.r))[0][0]}`}, 'select'));
    return el('tr', {}, who, cells);
  });
  return el('div', {}, el('div', {class: 'scroll'}, el('table', {class: 'hist'},
      el('thead', {}, el('tr', {}, el('th', {}, ''), head)), el('tbody', {}, rows))), said,
      table.more ? el('p', {class: 'note'}, `and ${table.more} more classes: frtrace -j -v`) : null,
      details('Operations in words', () => el('ul', {}, table.o.map((o, row) => el('li', {},
          `#${table.f + row}: ` + (text(o) || 'classes differ: ' + [...new Set(table.c.map(
              (c) => cellWords(table, row, c.x).words.replace(/^#\d+: /, '')))].join(' | ')))))));
}

let historyNodes = [];  // [table, its details element]

function historySection() {
  const {shown, all} = data().tables;
  const body = section('history', 'Around the divergence',
      'For each group, ranks with equal history are one row; a column is an operation of the group. ' +
      '✓ completed, ▶ started, … enqueued, ✗ failed, — never issued, · overwritten or unknown. ' +
      'Outlined: not what most ranks have there; the line below a number: the last in common.');
  historyNodes = shown.map((t, k) => {
    const title = text(t.t) + (t.names > 1 ? ` (${t.names} groups alike)` : '');
    const node = details((t.d ? '' : 'all alike: ') + title,
                         () => t.c ? historyTable(t) : el('p', {}, 'No collectives.'),
                         {open: k === 0 || (t.d && k < 3)});
    return [t, node];
  });
  add(body, [historyNodes.map(([, node]) => node),
             all > shown.length ? el('p', {class: 'note'},
                 `and ${all - shown.length} more: frtrace -j -v`) : null,
             el('p', {id: 'group-said', 'aria-live': 'polite'})]);
  listeners.push(showGroup);
}

let groupShown = null;
function showGroup() {
  const said = document.getElementById('group-said');
  if (view.group === groupShown || !said) {
    return;
  }
  groupShown = view.group;
  said.textContent = '';
  if (view.group === null) {
    return;
  }
  const found = historyNodes.find(([t]) => t.g.includes(view.group));
  if (found) {
    found[1].open = true;
  } else {
    said.textContent = clean(`${groupTitle(view.group)}: not among the tables of this page; ` +
                             `frtrace -j --groups ${report().groups[view.group].name}`);
  }
}

// Selects the group and scrolls to its table.
function openGroup(g) {
  select({group: g});
  const found = historyNodes.find(([t]) => t.g.includes(g));
  (found ? found[1] : document.getElementById('history')).scrollIntoView({block: 'center'});
}
