// devices.js - operations stuck on devices, and links between nodes that do not deliver.

function devicesSection() {
  const {devices, links} = report();
  const body = section('devices', 'Devices and links');
  if (devices.length === 0 && links.length === 0) {
    add(body, [el('p', {}, 'The verdict does not rest on devices or links: nothing was recorded of ' +
                  'them, or the hosts explain the hang.')]);
    return;
  }
  const most = 200;
  if (links.length) {
    add(body, [el('h3', {}, 'Links that do not deliver'),
               table(['from', 'to', 'step', 'channels', 'over'], links.slice(0, most).map((l) => [
                 where(l.from), where(l.to), `${l.step} of ${l.n_steps}`, l.channels.join(', '),
                 l.over.join('; ')])), matrix(links)]);
  }
  add(body, [el('h3', {}, 'Operations on devices'), table(
      ['rank', 'operation', 'state', 'for', 'stream', 'channels', 'behind', 'transfers'],
      devices.slice(0, most).map((d) => [
        where(d.rank), d.operation, d.state, d.seconds ? duration(d.seconds) : '', String(d.stream),
        d.channels.join(', '), d.behind,
        el('ul', {}, d.transfers.map((t) => el('li', {},
            `${t.kind} ${t.peer === null ? 'unknown peer' : `rank ${t.peer}`}: ${t.waits_for}, step ` +
            `${t.step} of ${t.n_steps}, channels ${t.channels.join(', ')}` +
            (t.over.length ? `, over ${t.over.join('; ')}` : ''))))])),
             devices.length > most ? el('p', {}, `and ${devices.length - most} more`) : null]);
}

function where(rank) {
  const p = person.get(rank);
  return `rank ${rank}${p && p.host ? ` (${p.host})` : ''}`;
}

// Node by node, where a link is stuck.
function matrix(links) {
  const host = (rank) => (person.get(rank) || {}).host || `rank ${rank}`;
  const names = [...new Set(links.flatMap((l) => [host(l.from), host(l.to)]))].sort().slice(0, 48);
  if (names.length < 2) {
    return null;
  }
  const count = (a, b) => links.filter((l) => host(l.from) === a && host(l.to) === b).length;
  return el('div', {class: 'scroll'}, el('table', {class: 'matrix'},
      el('caption', {class: 'note'}, 'Links from node (row) to node (column)'),
      el('thead', {}, el('tr', {}, el('th', {}, ''), names.map((n) => el('th', {scope: 'col'}, n)))),
      el('tbody', {}, names.map((a) => el('tr', {}, el('th', {scope: 'row'}, a), names.map((b) => {
        const n = count(a, b);
        return el('td', {class: n ? 'bad' : ''}, n ? String(n) : '');
      }))))));
}
