// main.js - builds the page, and updates it when the link, the size or the theme changes.

function copyButton(pre) {
  const button = el('button', {class: 'small', onclick: async () => {
    try {
      await navigator.clipboard.writeText(pre.textContent);
    } catch (error) {  // not allowed for files in some browsers
      getSelection().selectAllChildren(pre);
      document.execCommand('copy');
    }
    button.textContent = 'Copied';
  }}, 'Copy');
  pre.before(button);
}

function toolbar() {
  const filter = el('input', {type: 'search', id: 'filter', placeholder: 'ranks or hosts: 3,17-20,n7',
                              'aria-label': 'Show only these ranks or hosts',
                              oninput: () => select({filter: readFilter(filter.value)})});
  const theme = el('button', {id: 'theme', onclick: () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === 'dark' :
        matchMedia('(prefers-color-scheme: dark)').matches;
    root.dataset.theme = dark ? 'light' : 'dark';
    readPalette();
    redraw();
  }}, 'Dark or light');
  const tools = document.getElementById('tools');
  if (JOBS.length > 1) {
    const choice = el('select', {'aria-label': 'Job', onchange: () => {
      view.job = Number(choice.value);
      Object.assign(view, {rank: null, group: null, filter: null});
      filter.value = '';
      build();
      select({});
    }}, JOBS.map((j, i) => el('option', {value: i, selected: i === view.job}, j.job)));
    tools.append(choice);
  }
  tools.append(filter, theme, el('button', {id: 'save', onclick: saveJson}, 'Save JSON'));
}

const SECTIONS = [ranksSection, frontiersSection, historySection, waitsSection, timelineSection,
                  stacksSection, arrivalsSection, devicesSection, inputSection];

function build() {
  listeners.length = 0;
  plots.length = 0;
  document.getElementById('sections').replaceChildren();
  document.getElementById('nav').replaceChildren(el('a', {href: '#verdict'}, 'Verdict'));
  findPeople();
  for (const make of SECTIONS) {
    make();
  }
}

function followLink() {
  const given = readLink();
  if (given.rank !== null || given.group !== null) {
    select(given);
    const target = given.group !== null ? 'history' : 'ranks';
    document.getElementById(target)?.scrollIntoView();
  }
}

function start() {
  view.job = Math.max(0, JOBS.findIndex((j) => j.job === REPORT.job));
  for (const pre of document.querySelectorAll('#verdict pre')) {
    copyButton(pre);
  }
  toolbar();
  readPalette();
  build();
  redraw();
  followLink();
  let width = innerWidth;
  addEventListener('resize', () => {
    if (innerWidth !== width) {
      width = innerWidth;
      redraw();
    }
  });
  addEventListener('hashchange', followLink);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
    readPalette();
    redraw();
  });
  let opened = [], theme;
  const setTheme = (name) => {
    const {dataset} = document.documentElement;
    name === undefined ? delete dataset.theme : dataset.theme = name;
    readPalette();
    redraw();
  };
  addEventListener('beforeprint', () => {  // paper is light, and cannot open details
    opened = [...document.querySelectorAll('#verdict details:not([open])')];
    opened.forEach((d) => { d.open = true; });
    theme = document.documentElement.dataset.theme;
    setTheme('light');
  });
  addEventListener('afterprint', () => {
    opened.forEach((d) => { d.open = false; });
    setTheme(theme);
  });
  addEventListener('keydown', (event) => {
    if (event.key === 'Escape' && view.rank !== null) {
      select({rank: null});
    }
  });
  // For tests: the page is complete, and how long that took since it was requested.
  document.documentElement.dataset.ready = Math.round(performance.now());
}

start();
