// Strongly connected components.
#include "facts/graph.hpp"

#include <algorithm>
#include <utility>

namespace frtrace {

Components::Components(const std::vector<std::vector<int>>& edges)
    : edges_(edges), order_(edges.size(), -1), low_(edges.size()), component_(edges.size(), -1) {
  for (std::size_t v = 0; v < edges.size(); ++v) {
    if (order_[v] < 0) {
      visit(static_cast<int>(v));
    }
  }
}

void Components::visit(int root) {
  std::vector<std::pair<int, std::size_t>> path{{root, 0}};
  while (!path.empty()) {
    const int v = path.back().first;
    const std::size_t i = static_cast<std::size_t>(v);
    if (path.back().second == 0) {
      order_[i] = low_[i] = next_++;
      stack_.push_back(v);
    }
    if (path.back().second < edges_[i].size()) {
      const int w = edges_[i][path.back().second++];
      const std::size_t j = static_cast<std::size_t>(w);
      if (order_[j] < 0) {
        path.emplace_back(w, 0);
      } else if (component_[j] < 0) {
        low_[i] = std::min(low_[i], order_[j]);
      }
      continue;
    }
    if (low_[i] == order_[i]) {
      int w = -1;
      do {
        w = stack_.back();
        stack_.pop_back();
        component_[static_cast<std::size_t>(w)] = count_;
      } while (w != v);
      ++count_;
    }
    path.pop_back();
    if (!path.empty()) {
      const std::size_t parent = static_cast<std::size_t>(path.back().first);
      low_[parent] = std::min(low_[parent], low_[i]);
    }
  }
}

}  // namespace frtrace
