// stacks.js - the stacks of all ranks as one tree, the rarest first.

// Frames up to the next fork or the end of a stack.
function runOf(index) {
  const nodes = data().stacks.nodes;
  const frames = [];
  let node = nodes[index];
  for (;;) {
    if (node[0] !== 0) {
      frames.push(text(node[0]));
    }
    if (node[1].length !== 1 || node[2].length !== 0) {
      return {frames, node};
    }
    node = nodes[node[1][0]];
  }
}

function marked(frame, wanted) {
  const at = wanted ? frame.toLowerCase().indexOf(wanted) : -1;
  return at < 0 ? [frame] : [frame.slice(0, at), el('mark', {}, frame.slice(at, at + wanted.length)),
                             frame.slice(at + wanted.length)];
}

// null: it has nothing that is wanted.
function branch(index, wanted, takes, found) {
  const {frames, node} = runOf(index);
  if (!takes(text(node[3]))) {
    return null;
  }
  const here = found || !wanted || frames.some((f) => f.toLowerCase().includes(wanted));
  const ends = node[2].map((c) => classNode(c, wanted, here, takes)).filter(Boolean);
  const below = node[1].map((child) => branch(child, wanted, takes, here)).filter(Boolean);
  if (ends.length + below.length === 0) {
    return null;
  }
  const lines = frames.map((f) => el('div', {class: 'frame'}, marked(f, wanted)));
  const who = el('span', {class: 'who'}, ` ${rankTitle(text(node[3]), node[4])}`);
  if (lines.length === 0) {
    return el('div', {}, ends, below);
  }
  return el('details', {open: true}, el('summary', {}, el('span', {class: 'frame'},
      marked(frames[0], wanted)), who), lines.slice(1), ends, below);
}

function classNode(index, wanted, found, takes) {
  const [ranks, n, threads, doing, frontier, where] = data().stacks.classes[index];
  const lines = [text(doing), text(frontier), ...where.map(text)].filter(Boolean);
  if (!takes(text(ranks)) || (!found && !lines.some((line) => line.toLowerCase().includes(wanted)))) {
    return null;
  }
  const blamed = report().verdict.ranks.filter((r) => holds(text(ranks), r)).length === n;
  return el('div', {class: 'end'}, el('p', {}, el('b', {}, (blamed ? '! ' : '') +
      rankTitle(text(ranks), n)), threads > n ? `, ${threads} threads` : ''),
      lines.map((line) => el('p', {class: 'who'}, marked(line, wanted))));
}

function stacksSection() {
  const stacks = data().stacks;
  const body = section('stacks', 'Stacks', 'Outermost frame first; what ranks have in common is shown ' +
                       'once, the rarest branch first.');
  if (stacks.roles.length === 0) {
    add(body, [el('p', {}, 'The evidence has no stacks of threads.')]);
    return;
  }
  const tree = el('div', {class: 'tree'});
  const search = el('input', {type: 'search', id: 'stack-search', placeholder: 'function or file',
                              'aria-label': 'Search the stacks', oninput: () => draw()});
  const only = el('input', {type: 'checkbox', id: 'only-blamed', onchange: () => draw()});
  const draw = () => {
    const wanted = search.value.trim().toLowerCase();
    const takes = (fold) => (!only.checked ||
                             report().verdict.ranks.some((r) => holds(fold, r))) &&
        (view.rank === null || holds(fold, view.rank)) &&
        (view.filter === null || expand(fold).some(passes));
    const roles = stacks.roles.map(([name, root, ranks], k) => {
      const inside = branch(root, wanted, takes, false);
      return inside && el('details', {open: k === 0 || wanted !== ''}, el('summary', {}, el('b', {},
          text(name) === 'main' ? 'main threads' : `thread ${text(name)}`), ` of ${ranks} ranks`),
          inside);
    }).filter(Boolean);
    tree.replaceChildren(...(roles.length ? roles : [el('p', {}, 'Nothing of that kind.')]));
  };
  listeners.push(draw);
  draw();
  add(body, [el('p', {class: 'controls'}, search, ' ', el('label', {}, only, ' only blamed')), tree,
             stacks.told.map(([what, ranks]) => el('p', {class: 'note'},
                 `${rankWords(text(ranks), 80)}: ${text(what)}`)),
             stacks.without ? el('p', {class: 'note'}, `${stacks.without} of ${stacks.ranks} ranks: ` +
                                 'no stacks in their evidence') : null]);
}
