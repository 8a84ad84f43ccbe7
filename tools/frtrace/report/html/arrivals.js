// arrivals.js - the ranks that come last to each call site, how often and by how much.

const SORTS = {
  'longest waited for': (a, b) => b.sum - a.sum,
  'most operations': (a, b) => b.slots - a.slots,
  'most often one rank last': (a, b) => mostLast(b) - mostLast(a),
};
const mostLast = (site) => site.members.length ? site.members[0][1] / site.members[0][3] : 0;

const LATE_CAUSES = {host: 'its own host time', device: 'its device, issued in time',
                     node: 'its node', unknown: 'not clear'};
const LATE_PATTERNS = {always: 'always', growing: 'more and more', now_and_then: 'now and then'};

// Ranks that are late by their own time: the call site where each loses most, and the others.
function stragglersNode() {
  const late = report().stragglers;
  if (late.length === 0) {
    return el('p', {}, ['ok', 'slow'].includes(report().verdict.kind) ?
        'No rank comes late to a call site again and again by its own time.' :
        'Something is stuck: what came before it, below, is not judged.');
  }
  const most = 64;
  const since = (l) => (l.since_step === null ? `#${l.since_seq}` : `step ${l.since_step}`) +
      (l.since_first ? ' at least, the first compared' : '');
  const place = (p) => [`${p.op} of ${p.desc || p.group}` + (p.site ? ` at ${siteWords(p.site)}` : ''),
                        `${p.last} of ${p.of}`, `${p.late} of ${p.of}`, duration(p.median_s),
                        duration(p.worst_s)];
  const rows = late.slice(0, most).flatMap((l) => [[
    el('button', {class: 'link', onclick: () => select({rank: l.rank})}, where(l.rank)), ...place(l),
    LATE_PATTERNS[l.pattern], since(l), LATE_CAUSES[l.cause] + (l.cause === 'host' &&
        !l.device_starts ? ' (or its device: when that began was not recorded)' : '')],
    ...l.also.map((p) => ['and', ...place(p), '', '', 'the same'])]);
  const changes = late.slice(0, most).flatMap((l) => [
    l.followers.length ? `late only because rank ${l.rank} is: ${rankWords(foldRanks(l.followers))}` : '',
    ...l.step_time_changes.map((c) => `rank ${l.rank}: its steps take ${duration(c.after_s)} instead ` +
        `of ${duration(c.before_s)} from ${c.step === null ? `#${c.seq}` : `step ${c.step}`} on`)])
      .filter(Boolean);
  return el('div', {id: 'late'}, table(['rank', 'comes late to', 'last of all', 'late', 'by (median)',
      'at most', 'how', 'since', 'whose time'], rows), changes.length ? el('ul', {},
          changes.map((c) => el('li', {}, c))) : null,
      late.length > most ? el('p', {}, `and ${late.length - most} more, in the JSON`) : null);
}

function arrivalsSection() {
  const {sites, all, by_clocks: byClocks} = data().arrivals;
  const body = section('stragglers', 'Stragglers');
  add(body, [stragglersNode()]);
  if (sites.length === 0) {
    add(body, [el('p', {}, 'No operation that all members of a group completed is kept.')]);
    return;
  }
  add(body, [el('h3', {}, 'Who came last'), el('p', {class: 'note'}, 'Of operations that all ' +
      'members completed: who came last, and by how much after the median of the others, whatever ' +
      'kept them. ' + (byClocks ? 'Ends are not recorded: the ranks\' clocks were compared, so ' +
          'small differences say little.' : ''))]);
  const place = el('div', {});
  const choice = el('select', {id: 'arrivals-sort', onchange: () => draw(choice.value)},
                    Object.keys(SORTS).map((name) => el('option', {}, name)));
  let own = [];
  const draw = (order) => {
    for (const one of own) {
      plots.splice(plots.indexOf(one), 1);
    }
    const before = plots.length;
    place.replaceChildren(...[...sites].sort(SORTS[order]).map(siteNode));
    own = plots.slice(before);
    redraw();
  };
  add(body, [el('p', {class: 'controls'}, el('label', {}, 'Sort by ', choice)), place,
             all > sites.length ? el('p', {class: 'note'}, `and ${all - sites.length} more call sites`) :
                                  null]);
  const before = plots.length;
  place.replaceChildren(...sites.map(siteNode));
  own = plots.slice(before);
}

function siteNode(site, k) {
  const [rank, last, , own] = site.members[0] || [null, 0];
  const head = `${text(site.op)} of ${text(site.group)}` + (text(site.site) ? ` at ${text(site.site)}` :
      '') + `: ${site.slots} operation${site.slots === 1 ? '' : 's'}, ${
      duration(site.sum / 1e6 / site.slots)} on average` +
      (last ? `; rank ${rank} last in ${last} of its ${own}` : '; nobody late by more than 1 ms');
  const late = site.members.filter((m) => m[1] > 0).slice(0, 12);
  const node = el('details', {open: k === 0 && late.length > 0}, el('summary', {}, head));
  add(node, [histogram(site), late.length ? table(['rank', 'last', 'of', 'share', 'late then, on average'],
      late.map(([r, times, sum, of]) => [
        el('button', {class: 'link', onclick: () => select({rank: r})}, `rank ${r}`), String(times),
        String(of), `${Math.round(100 * times / of)} %`, duration(sum / times / 1e6)])) : null,
      late.length ? heatStrip(site) : null]);
  node.addEventListener('toggle', redraw);
  return node;
}

// Histogram of how long the last rank came after the median of the others.
function histogram(site) {
  const first = site.histogram.findIndex((n) => n > 0);
  const last = site.histogram.length - 1 - [...site.histogram].reverse().findIndex((n) => n > 0);
  const edge = (k) => k === 0 ? 0 : 1e-6 * 2 ** (k - 1);
  const shown = site.histogram.slice(first, last + 1);
  const most = Math.max(...shown);
  const bars = el('div', {class: 'bars', role: 'img', 'aria-label': 'Lateness of the last: ' +
      shown.map((n, k) => n ? `${n} from ${duration(edge(first + k))}` : '').filter(Boolean).join(', ')},
      shown.map((n, k) => el('i', {title: `${n} operations, from ${duration(edge(first + k))} to ` +
          duration(edge(first + k + 1))})));
  [...bars.children].forEach((bar, k) => { bar.style.height = `${Math.round(100 * shown[k] / most)}%`; });
  const box = el('div', {}, el('div', {class: 'note'}, 'How late the last came (number of operations)'),
                 bars, el('div', {class: 'axis'}, el('span', {}, duration(edge(first))),
                          el('span', {}, duration(edge(last + 1)))));
  box.style.maxWidth = '420px';
  return box;
}

// A row per rank, time across: how late it was.
function heatStrip(site) {
  const rows = site.members.slice(0, 16);
  const most = Math.max(1, ...rows.flatMap((m) => m[4]));
  const h = 14;
  const canvas = plot('How late each rank came, in the order of the operations',
      () => rows.length * h + 2, (context, width) => {
        const x0 = 70;
        rows.forEach(([rank, , , , parts], k) => {
          context.fillStyle = palette.text;
          context.textBaseline = 'middle';
          context.textAlign = 'left';
          context.fillText(`rank ${rank}`, 0, k * h + h / 2);
          parts.forEach((late, i) => {
            context.fillStyle = late <= 0 ? palette.even :
                between(palette.even, palette.behind, Math.sqrt(late / most));
            const x = x0 + Math.floor(i * (width - x0) / parts.length);
            const next = x0 + Math.floor((i + 1) * (width - x0) / parts.length);
            context.fillRect(x, k * h + 1, next - x, h - 2);
          });
        });
      });
  return el('div', {}, el('div', {class: 'note'},
      `Rank by operations in their order; the strongest colour: ${duration(most / 1e6)} late` +
      (site.n > rows.length ? `; ${site.n - rows.length} more ranks are not drawn` : '')),
      el('div', {class: 'plot'}, canvas));
}
