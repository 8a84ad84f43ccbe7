"""The switches of `make ablate`: where they are put, and that no rule is without one."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "ablate"))
import switches  # noqa: E402

TEXT = """\
bool is_late(const Facts& f, int i) {
  const auto waits = [&](int k) {
    return k > i;
  };
  const auto last = [&](int k) {
    return f.find([&](auto& x) { return x == k; });
  };
  return waits(last(i));
}

std::vector<Cause> idle(const Facts& f,
                        int i) {
  return {};
}

void note(Facts& f) {
  f.noted = true;
}
"""


def test_each_decision_gets_a_switch():
    text, found = switches.instrument(TEXT, "a.cpp", 7)
    assert [(s.number, s.name, s.value, s.line, s.lines) for s in found] == [
        (7, "is_late", "false", 1, 9),
        (8, "is_late", "true", 1, 9),
        (9, "waits", "false", 2, 3),
        (10, "waits", "true", 2, 3),
        (11, "idle", "{}", 11, 3),
    ]
    assert "int i) { if (fr_ablate::is_off(11)) return {};" in text
    assert text.count("is_off") == 5  # none for what may return anything but a bool


def test_every_rule_has_a_switch():
    folder = ROOT / "tools" / "frtrace" / "causes"
    rules = re.findall(r"\{Tier::\w+, (\w+)", (folder / "rules.cpp").read_text())
    named = set()
    for path in folder.glob("*.cpp"):
        named |= {s.name for s in switches.instrument(path.read_text(), path.name, 0)[1]}
    assert len(rules) > 30 and set(rules) <= named
