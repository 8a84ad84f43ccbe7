// graph.hpp - strongly connected components of a directed graph.
#pragma once

#include <cstddef>
#include <vector>

namespace frtrace {

// Tarjan's algorithm, iterative: the graph may be as deep as the job has ranks.
class Components {
 public:
  explicit Components(const std::vector<std::vector<int>>& edges);
  int count() const { return count_; }
  int of(int vertex) const { return component_[static_cast<std::size_t>(vertex)]; }

 private:
  void visit(int root);

  const std::vector<std::vector<int>>& edges_;
  std::vector<int> order_, low_, component_, stack_;
  int next_ = 0, count_ = 0;
};

}  // namespace frtrace
