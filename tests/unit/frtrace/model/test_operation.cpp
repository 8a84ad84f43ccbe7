// Signatures: the parts of a record that are compared between ranks.
#include "catch.hpp"
#include "jobs.hpp"
#include "model/operation.hpp"

using namespace frtest;

TEST_CASE("the signatures of many records are those of each") {
  JobBuilder j(1);
  iterations(j, 2);
  const RankEvidence& e = j.rank(0);
  Signatures all(e);
  REQUIRE(e.records.size() == 4);
  for (const Record& r : e.records) {
    CHECK(all.hash(r) == signature_hash(e, r));
    CHECK(all.is_all_to_all(r) == is_all_to_all(e.text(r.op)));
  }
}
