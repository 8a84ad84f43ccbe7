// arrivals.js - who comes last to which call site, how often and by how much.

const SORTS = {
  'longest waited for': (a, b) => b.sum - a.sum,
  'most operations': (a, b) => b.slots - a.slots,
  'most often one rank last': (a, b) => mostLast(b) - mostLast(a),
};
const mostLast = (site) => site.members.length ? site.members[0][1] / site.members[0][3] : 0;

function arrivalsSection() {
  const {sites, all, by_clocks: byClocks} = data().arrivals;
  const body = section('stragglers', 'Stragglers', 'Of operations that all members completed: who ' +
      'came last, and by how much after the median of the others. ' + (byClocks ?
          'Ends are not recorded: the ranks\' clocks were compared, so small differences say little.' : ''));
  if (sites.length === 0) {
    add(body, [el('p', {}, 'No operation that all members of a group completed is kept.')]);
    return;
  }
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
  const [rank, last] = site.members[0] || [null, 0];
  const share = Math.round(100 * mostLast(site));
  const head = `${text(site.op)} of ${text(site.group)}` + (text(site.site) ? ` at ${text(site.site)}` :
      '') + `: ${site.slots} operations, ${duration(site.sum / 1e6 / site.slots)} on average` +
      (last ? `; rank ${rank} last in ${share} % of its own` : '; nobody late by more than 1 ms');
  const node = el('details', {open: k === 0}, el('summary', {}, head));
  const late = site.members.filter((m) => m[1] > 0).slice(0, 12);
  add(node, [histogram(site), late.length ? table(['rank', 'last', 'of', 'share', 'late then, on average'],
      late.map(([r, times, sum, of]) => [
        el('button', {class: 'link', onclick: () => select({rank: r})}, `rank ${r}`), String(times),
        String(of), `${Math.round(100 * times / of)} %`, duration(sum / times / 1e6)])) : null,
      heatStrip(site)]);
  node.addEventListener('toggle', redraw);
  return node;
}

// How much the last came after the median of the others.
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

// Rank down, time across: how late it was.
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
      `Rank by operations in their order; the darkest is ${duration(most / 1e6)} late` +
      (site.n > rows.length ? `; ${site.n - rows.length} more ranks are not drawn` : '')),
      el('div', {class: 'plot'}, canvas));
}
