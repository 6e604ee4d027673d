#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "codegen/overlap/timeline.hpp"

namespace ordo::overlap {
namespace {

// SVG user units.
constexpr double kLabels = 96, kPlot = 960, kMargin = 24, kHead = 64, kFoot = 58;
constexpr double kComputeRow = 24, kCopyRow = 9,
                 kGap = 10;  ///< a rank: its compute row and two thin rows for what it sends and receives
constexpr double kRankHeight = kComputeRow + 2 * kCopyRow + kGap;

// Okabe-Ito: told apart with every colour vision, and by lightness in grey.
constexpr std::string_view kOwnSlice = "#0072b2", kOtherSlice = "#56b4e9", kStall = "#d8d8d8", kSend = "#e69f00",
                           kReceive = "#009e73";

std::string milliseconds(double seconds) { return fmt::format("{:.4g} ms", seconds * 1e3); }

class TimelineSvg {
 public:
  TimelineSvg(const StepSchedule& schedule, const Timeline& timeline) : s_(schedule), t_(timeline) {}

  std::string draw(const std::string& title) {
    const double width = kLabels + kPlot + kMargin, height = kHead + s_.ranks * kRankHeight + kFoot;
    put(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0:g} {1:g}" width="{0:g}" height="{1:g}" font-family="Helvetica, Arial, sans-serif" )"
        R"(font-size="12" fill="#222"><rect width="100%" height="100%" fill="#fff"/>)",
        width, height);
    put(R"(<text x="{:g}" y="22" font-size="15" font-weight="bold">{}</text>)", kLabels, escaped(title));
    put(R"(<text x="{:g}" y="42" fill="#555">{} ranks, {} sub-slices, {} route &#183; {} in all, {} compute, {} communication, {} exposed</text>)",
        kLabels, s_.ranks, s_.sub_slices, to_string(s_.route), milliseconds(t_.makespan), milliseconds(t_.compute),
        milliseconds(t_.communication), milliseconds(t_.exposed));
    for (int rank = 0; rank < s_.ranks; ++rank) {
      put(R"(<text x="{:g}" y="{:g}" text-anchor="end">rank {}</text>)", kLabels - 10, top(rank) + kComputeRow - 7, rank);
      put(R"(<text x="{:g}" y="{:g}" text-anchor="end" font-size="9" fill="#555">out, in</text>)", kLabels - 10,
          top(rank) + kComputeRow + kCopyRow + 4);
    }
    for (const Span& span : t_.spans) bar(span);
    scale(height - kFoot);
    legend(height - 12);
    out_ += "</svg>\n";
    return std::move(out_);
  }

 private:
  template <class... Args>
  void put(fmt::format_string<Args...> text, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), text, std::forward<Args>(args)...);
    out_ += '\n';
  }
  static std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) out += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
    return out;
  }
  static double top(int rank) { return kHead + rank * kRankHeight; }
  [[nodiscard]] double at(double time) const { return kLabels + (t_.makespan > 0 ? time / t_.makespan * kPlot : 0); }

  void bar(const Span& span) {
    const double x = at(span.start), width = at(span.end) - x;
    const bool copy = span.lane == Lane::send || span.lane == Lane::receive;
    const double y = top(span.rank) + (copy ? kComputeRow + (span.lane == Lane::receive ? kCopyRow : 0) : 0);
    const auto [colour, text] = describe(span);
    put(R"(<rect x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:g}" fill="{}" stroke="#fff" stroke-width="0.5"><title>{}: {} to {}</title></rect>)",
        x, y, width, copy ? kCopyRow - 1 : kComputeRow - 1, colour, text, milliseconds(span.start), milliseconds(span.end));
    if (span.lane == Lane::compute && width > 18) {
      put(R"(<text x="{:.2f}" y="{:.1f}" font-size="10" fill="#fff" text-anchor="middle" pointer-events="none">{}</text>)",
          x + width / 2, y + kComputeRow / 2 + 3, s_.steps_of(span.rank)[static_cast<std::size_t>(span.index)].slice);
    }
  }

  [[nodiscard]] std::pair<std::string_view, std::string> describe(const Span& span) const {
    if (span.lane == Lane::compute || span.lane == Lane::stall) {
      const Step& step = s_.steps_of(span.rank)[static_cast<std::size_t>(span.index)];
      if (span.lane == Lane::stall)
        return {kStall, fmt::format("rank {} waits for slice {}.{}", span.rank, step.slice, step.sub)};
      return {step.slice == span.rank ? kOwnSlice : kOtherSlice,
              fmt::format("rank {} computes slice {}.{}", span.rank, step.slice, step.sub)};
    }
    const Transfer& t = s_.transfers[static_cast<std::size_t>(span.index)];
    return {span.lane == Lane::send ? kSend : kReceive,
            fmt::format("slice {}.{} from rank {} to {}, {} bytes", t.slice, t.sub, t.from, t.to, t.bytes)};
  }

  void scale(double bottom) {
    put(R"(<line x1="{0:g}" y1="{1:g}" x2="{2:g}" y2="{1:g}" stroke="#222"/>)", kLabels, bottom, kLabels + kPlot);
    constexpr int kParts = 8;
    for (int part = 0; part <= kParts; ++part) {
      const double time = t_.makespan * part / kParts;
      put(R"(<text x="{:.1f}" y="{:g}" text-anchor="middle" font-size="10">{}</text>)", at(time), bottom + 15,
          milliseconds(time));
    }
  }

  void legend(double base) {
    double x = kLabels;
    for (const auto& [colour, text] : {std::pair{kOwnSlice, "own slice"},
                                       {kOtherSlice, "slice of another rank"},
                                       {kStall, "waiting"},
                                       {kSend, "sending"},
                                       {kReceive, "receiving"}}) {
      put(R"(<rect x="{:g}" y="{:g}" width="12" height="12" fill="{}"/><text x="{:g}" y="{:g}">{}</text>)", x, base - 10, colour,
          x + 17, base, text);
      x += 150;
    }
  }

  const StepSchedule& s_;
  const Timeline& t_;
  std::string out_;
};

// One row: in each cell the sign of what covers most of it.
std::string row_text(const Timeline& timeline, int rank, int columns, const std::array<char, 4>& signs) {
  std::vector<std::array<double, 4>> share(static_cast<std::size_t>(columns), std::array<double, 4>{});
  const double cell = timeline.makespan / columns;
  for (const Span& span : timeline.spans) {
    if (span.rank != rank || signs[static_cast<std::size_t>(span.lane)] == 0) continue;
    for (int i = std::clamp(static_cast<int>(span.start / cell), 0, columns - 1); i < columns && i * cell < span.end; ++i) {
      share[static_cast<std::size_t>(i)][static_cast<std::size_t>(span.lane)] +=
          std::min(span.end, (i + 1) * cell) - std::max(span.start, i * cell);
    }
  }
  std::string row;
  for (const auto& of : share) {
    const auto most = std::max_element(of.begin(), of.end());
    row += *most * 2 > cell ? signs[static_cast<std::size_t>(most - of.begin())] : ' ';
  }
  return row;
}

}  // namespace

std::string render_timeline_svg(const StepSchedule& schedule, const Timeline& timeline, const std::string& title) {
  return TimelineSvg(schedule, timeline).draw(title);
}

std::string render_timeline_text(const StepSchedule& schedule, const Timeline& timeline, int columns) {
  columns = std::clamp(columns, 20, 400);
  std::string out;
  if (timeline.makespan <= 0) return "nothing to show: no time passes\n";
  const auto to = std::back_inserter(out);
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const RankTime& time = timeline.ranks[static_cast<std::size_t>(rank)];
    fmt::format_to(to, "rank {:<3}|{}| compute {:.4g} ms, waiting {:.4g}\n", rank,
                   row_text(timeline, rank, columns, {'#', '.', 0, 0}), time.compute * 1e3, time.stall * 1e3);
    fmt::format_to(to, "     out|{}| sending {:.4g} ms\n", row_text(timeline, rank, columns, {0, 0, '>', 0}), time.send * 1e3);
    fmt::format_to(to, "      in|{}| receiving {:.4g} ms\n", row_text(timeline, rank, columns, {0, 0, 0, '<'}),
                   time.receive * 1e3);
  }
  fmt::format_to(to, "         0{:>{}.4g} ms\n", timeline.makespan * 1e3, columns - 1);
  return out;
}

}  // namespace ordo::overlap
