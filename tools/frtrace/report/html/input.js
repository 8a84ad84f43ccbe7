// input.js - the input of the report: files, losses, clocks, options; the JSON to save.

function inputSection() {
  const body = section('input', 'Input');
  const input = report().input;
  add(body, [el('p', {}, `Evidence of ${input.read} of ${input.expected} ranks was read.`),
             input.missing_ranks.length ?
                 el('p', {}, `Without evidence: ${rankWords(foldRanks(input.missing_ranks), 400)}`) :
                 null]);
  if (input.unreadable.length) {
    const shown = input.unreadable.slice(0, 200);
    add(body, [el('h3', {}, 'Files that were not read'),
               table(['file', 'why'], shown.map((u) => [u.file, u.why])),
               input.unreadable.length > shown.length ?
                   el('p', {}, `and ${input.unreadable.length - shown.length} more`) : null]);
  }
  if (data().losses.length) {
    add(body, [el('h3', {}, 'Lost'),
               table(['what', 'how many', 'by'], data().losses.map(
                   ([name, n, ranks]) => [text(name), String(n), rankWords(text(ranks), 80)]))]);
  }
  clocks(body);
  learned(body);
  settings(body, 'Capture layers', data().layers);
  settings(body, 'Options in force', data().options);
  const groups = () => table(
      ['group', 'size', 'ranks', 'backend', 'enqueued', 'completed', 'overwritten'],
      report().groups.slice(0, 1000).map((g, i) => [
        groupTitle(i), String(g.size), rankWords(g.ranks, 60), g.backend, g.enqueued.join(' to '),
        g.completed.join(' to '), String(g.overwritten + g.dropped)]));
  add(body, [details(`Groups (${report().groups.length})`, groups)]);
}

function clocks(body) {
  const {hosts, shown} = data().clocks;
  if (hosts < 2) {
    return;
  }
  const first = people.find((p) => p.host);
  const told = shown.filter(([, , , error]) => error >= 0);
  const most = Math.max(0, ...told.map(([, , ahead]) => Math.abs(ahead)));
  add(body, [details(
      `Clocks: of ${hosts} hosts, ${told.length} ` +
      `could be compared with that of rank ${first ? first.rank : 0}` +
      (told.length ? `; at most ${duration(most / 1e6)} apart` : ''),
      () => table(['host', 'by rank', 'ahead by', 'at most off by'],
                  shown.map(([host, rank, ahead, error]) => [
                    text(host), String(rank), error < 0 ? 'not known' : duration(ahead / 1e6),
                    error < 0 ? '' : duration(error / 1e6)])))]);
}

// The measurements behind the deadlines of call sites.
function learned(body) {
  const {all, shown} = data().deadlines;
  if (all === 0) {
    return;
  }
  const span = (ms) => ms ? duration(ms / 1e3) : '';
  add(body, [details(
      `Learned deadlines: the longest waits at ${all} call site${all === 1 ? '' : 's'}`,
      () => table(['call site', 'seconds visited', 'until all came', 'one slept', 'after all came',
                   'false warnings', 'false dumps', 'deadlines'],
                  shown.map(([site, visits, absent, asleep, together, warnings, dumps, doublings]) => [
                    text(site), String(visits), span(absent), span(asleep), span(together),
                    String(warnings), String(dumps), doublings ? `x ${2 ** doublings}` : '']))),
             all > shown.length ? el('p', {class: 'note'}, `and ${all - shown.length} more call sites`) :
                                  null]);
}

// Settings on which ranks differ, and those on which all agree.
function settings(body, title, list) {
  if (list.length === 0) {
    return;
  }
  const differ = list.filter(([, values]) => values.length > 1);
  const rows = list.flatMap(([name, values, all]) => [
    ...values.map(([value, ranks], i) => [i ? '' : text(name), text(value),
                                          values.length > 1 ? rankWords(text(ranks), 80) : 'all']),
    ...(all > values.length ? [['', `and ${all - values.length} more values`, '']] : [])]);
  add(body, [details(`${title} (${list.length}` + (differ.length ?
      `; ranks differ in ${differ.map(([name]) => text(name)).join(', ')})` : ')'),
                     () => table(['name', 'value', 'ranks'], rows))]);
}

function foldRanks(list) {
  const sorted = [...list].sort((a, b) => a - b);
  const out = [];
  for (let i = 0; i < sorted.length;) {
    let end = i;
    while (end + 1 < sorted.length && sorted[end + 1] === sorted[end] + 1) {
      ++end;
    }
    out.push(end === i ? `${sorted[i]}` : `${sorted[i]}-${sorted[end]}`);
    i = end + 1;
  }
  return out.join(',');
}

// The report as `frtrace --json` writes it.
function saveJson() {
  const url = URL.createObjectURL(new Blob([JSON.stringify(REPORT, null, 1) + '\n'],
                                           {type: 'application/json'}));
  const link = el('a', {href: url, download: `${REPORT.job || 'frtrace'}.json`});
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
