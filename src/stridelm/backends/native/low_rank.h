// The adapter's low-rank parts of one product: applied to mask rows only.
//
// The first factor comes before the product, the second after it: what one thread needs of the others' first factor is
// there by then, and nobody waits. The second factor's weights are fetched during the product.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "model.h"
#include "products.h"
#include "team.h"
#include "workspace.h"

namespace stride {

class LowRankProduct {
 public:
  // `own`: this thread's share of the product, of which the mask rows [real, rows) are changed.
  LowRankProduct(const LowRank& low, const Step& step, Workspace& work, const Share& own, int thread, int threads)
      : low_(low), work_(work), own_(own), real_(step.real), masks_(step.rows - step.real), thread_(thread),
        threads_(threads) {}

  // What `begin` reads.
  static Upcoming first_factor(const LowRank& low, int thread, int threads) {
    const Share share(low.down.panels, 1, thread, threads);
    Upcoming found;
    found.add(low.down, share.first, share.last);
    return found;
  }

  // `next`: what is read after this.
  void begin(const Quantised& x, Activations as, Upcoming next) {
    const Share share(low_.down.panels, 1, thread_, threads_);
    const Destination to{work_.low.data(), work_.low_stride};
    next.divide(share.last - share.first, kFetched);
    product(low_.down, as, share.first, share.last, x, real_, masks_, to, &next);
    arrival_ = Team::instance().arrive(threads_);
  }

  // What `finish` reads.
  Upcoming upcoming() const {
    Upcoming found;
    for (int64_t number = 0; number < low_.parts; number++) {
      const Panels panels = panels_of(low_.part[number]);
      found.add(low_.part[number].up, panels.first, panels.last);
    }
    found.divide(own_.last - own_.first, std::numeric_limits<int64_t>::max());
    return found;
  }

  // Add the second factors' products to this thread's share, which is computed by now.
  void finish(Activations as) {
    Team::instance().wait_for(arrival_, thread_);
    const float* from = work_.low.data();
    for (int64_t number = 0; number < low_.parts; number++) {
      const Part& part = low_.part[number];
      const Quantised x = work_.own[thread_].low.rows(part.up.groups * kGroup);
      for (int64_t row = 0; row < masks_; row++) quantise_row(from + row * work_.low_stride, as, x, row);
      const Panels panels = panels_of(part);
      float* to = work_.products.data() + real_ * work_.product_stride + part.first * kLanes;
      product(part.up, as, panels.first, panels.last, x, 0, masks_, {to, work_.product_stride, part.step, true});
      from += part.up.groups * kGroup;
    }
  }

 private:
  struct Panels {
    int64_t first, last;
  };
  // Which panels of a second factor belong to this thread's share.
  Panels panels_of(const Part& part) const {
    const auto at = [&](int64_t panel) {
      const int64_t inside = std::max(panel, part.first) - part.first;
      return std::min((inside + part.step - 1) / part.step, part.up.panels);
    };
    return {at(own_.first), at(own_.last)};
  }

  const LowRank& low_;
  Workspace& work_;
  const Share own_;
  const int64_t real_, masks_;
  const int thread_, threads_;
  int arrival_ = 0;
};

}  // namespace stride
