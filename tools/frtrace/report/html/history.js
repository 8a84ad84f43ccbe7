function historySection() {}
function openGroup(g) { select({group: g}); }
