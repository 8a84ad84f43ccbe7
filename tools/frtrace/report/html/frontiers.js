// frontiers.js - how far each rank got in each group: a column per rank, a row per group; groups of
// one description with disjoint members share a row.

const COUNTERS = ['enqueued', 'started', 'completed'];

// Groups of one description with disjoint members share a row: [{title, groups: [index]}]
function groupRows() {
  const rows = new Map();
  report().groups.forEach((group, g) => {
    if (group.enqueued[1] === 0) {
      return;
    }
    const key = `${group.desc || group.name}/${group.size}`;
    if (!rows.has(key)) {
      rows.set(key, []);
    }
    const fitting = rows.get(key).find((row) => apart(row.members, group.ranks));
    const row = fitting || {groups: [], members: []};
    if (!fitting) {
      rows.get(key).push(row);
    }
    row.groups.push(g);
    row.members.push(...ranges(group.ranks));
  });
  return [...rows.values()].flat();
}

// Whether two lists of ranks are disjoint, by comparing their ranges.
function apart(members, fold) {
  if (members.length > 4096) {
    return true;
  }
  return ranges(fold).every(([a, b]) => members.every(([c, d]) => b < c || d < a));
}

// How far each rank is behind the front of its group; -1: no member, -2: no evidence.
function behind(row) {
  const place = new Map(people.map((p, i) => [p.rank, i]));
  const out = COUNTERS.map(() => new Float64Array(people.length).fill(-1));
  for (const g of row.groups) {
    const members = expand(report().groups[g].ranks);
    data().frontiers[g].forEach((runs, c) => {
      let front = 0, i = 0;
      for (let k = 0; k < runs.length; k += 2) {
        front = Math.max(front, runs[k]);
      }
      for (let k = 0; k < runs.length; k += 2) {
        for (let n = 0; n < runs[k + 1]; ++n, ++i) {
          const at = place.get(members[i]);
          if (at !== undefined) {
            out[c][at] = runs[k] < 0 ? -2 : front - runs[k];
          }
        }
      }
    });
  }
  return out;
}

const BAND = 11;
function drawFronts(context, width, values) {
  const step = width / people.length;
  const most = values.map((v) => v.reduce((a, b) => Math.max(a, b), 0));
  const behindAt = [];
  values.forEach((v, c) => {
    const y = c * (BAND + 1);
    const columns = Math.min(people.length, Math.floor(width));
    for (let i = 0; i < columns; ++i) {  // of ranks that share a pixel, the worst is drawn
      const from = Math.floor(i * people.length / columns);
      const to = Math.max(from + 1, Math.floor((i + 1) * people.length / columns));
      let worst = -1, lost = false;
      for (let k = from; k < to; ++k) {
        worst = Math.max(worst, v[k]);
        lost = lost || v[k] === -2;
      }
      if (worst < 0 && !lost) {
        continue;
      }
      const x = Math.floor(i * width / columns);
      const w = Math.max(1, Math.floor((i + 1) * width / columns) - x - (step > 6 ? 1 : 0));
      if (worst > 0) {
        behindAt.push([x, y, w, between(palette['behind-soft'], palette.behind,
                                        Math.log1p(worst) / Math.log1p(most[c]))]);
        continue;
      }
      context.fillStyle = lost ? palette.gone : palette.even;
      const h = lost ? 4 : BAND;  // a thin mark: nothing is known
      context.fillRect(x, y + (BAND - h) / 2, w, h);
    }
  });
  for (const [x, y, w, fill] of behindAt) {  // over the others, and wide enough to be seen
    context.fillStyle = fill;
    context.fillRect(Math.min(x, width - 3), y, Math.max(w, 3), BAND);
  }
  if (view.rank !== null) {
    const at = people.findIndex((p) => p.rank === view.rank);
    context.fillStyle = palette.focus;
    context.fillRect(Math.floor((at + 0.5) * step) - 1, 0, 2, 3 * (BAND + 1));
  }
}

function frontiersSection() {
  const rows = groupRows();
  const most = 48;
  const body = section('frontiers', 'Frontiers',
      'How far each rank got: ranks from left to right, for each group three bands: enqueued, ' +
      'started, completed. Grey: level with the front of its group; orange: behind it, the stronger ' +
      'the more operations; a thin line: no evidence.');
  const said = el('p', {class: 'said', 'aria-live': 'polite'});
  const all = rows.map((row) => ({row, values: behind(row)}));
  const worst = (one) => Math.max(...one.values.map((v) => v.reduce((a, b) => Math.max(a, b), 0)));
  all.sort((a, b) => worst(b) - worst(a) || b.row.groups.length - a.row.groups.length);
  for (const {row, values} of all.slice(0, most)) {
    const g = row.groups[0];
    const title = row.groups.length === 1 ? groupTitle(g) :
        `${groupName(g)} (${row.groups.length} groups of ${report().groups[g].size})`;
    const spread = COUNTERS.map((name, c) => {
      const n = values[c].filter((v) => v > 0).length;
      return n ? `${n} behind in ${name}` : null;
    }).filter(Boolean).join(', ');
    const canvas = plot(`Frontiers of ${clean(title)}: ${spread || 'all level'}`,
                        () => 3 * (BAND + 1), (context, width) => drawFronts(context, width, values));
    const rankAt = (event) => people[Math.min(people.length - 1, Math.max(0, Math.floor(
        at(event)[0] / canvas.clientWidth * people.length)))].rank;
    canvas.addEventListener('mousemove', (event) => {
      const rank = rankAt(event);
      const of = row.groups.find((k) => holds(report().groups[k].ranks, rank));
      const own = of === undefined ? null : counters(of, rank);
      said.textContent = clean(own === null ? `rank ${rank} is no member` :
          `rank ${rank} in ${groupTitle(of)}: ` +
          COUNTERS.map((name, c) => `${name} ${own[c] < 0 ? 'not known' : own[c]}`).join(', '));
    });
    canvas.addEventListener('click', (event) => {
      const rank = rankAt(event);
      const of = row.groups.find((k) => holds(report().groups[k].ranks, rank));
      select({rank, group: of === undefined ? view.group : of});
    });
    add(body, [el('div', {class: 'front'},
        el('div', {}, el('button', {class: 'link', onclick: () => openGroup(g)}, title),
           el('div', {class: 'note'}, spread || 'all level')),
        el('div', {class: 'plot'}, canvas))]);
  }
  add(body, [said, all.length > most ?
      el('p', {}, `and ${all.length - most} more kinds of groups, see Input`) : null,
             details('Table of the groups', () => table(
                 ['group', 'ranks', 'enqueued', 'completed'], report().groups.slice(0, 1000).map(
                     (group, k) => [groupTitle(k), rankWords(group.ranks, 60),
                                    group.enqueued.join(' to '), group.completed.join(' to ')])))]);
}
