#include "codegen/schedule/gantt.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "codegen/schedule/geometry.hpp"

namespace ordo {
namespace {

// Lengths are SVG user units (pixels at scale 1).
constexpr double kLeft = 64, kRight = 24, kTop = 58, kBottom = 62;
constexpr double kPlotWidth = 960;
constexpr double kMostPlotHeight = 900;
constexpr double kTallestRow = 26;
constexpr std::size_t kMostBars = 200000;

// Okabe-Ito blue and orange, and light greys with a pattern: distinct for every kind of colour vision and in grey print. Heads
// alternate between two tones of blue.
constexpr std::string_view kColours[] = {"#0072b2", "#e69f00", "url(#stall)", "url(#wait)"};
constexpr std::string_view kOddHead = "#4a9fd0";

/// A step of 1, 2 or 5 times a power of ten that cuts `length` into at most `most` parts.
double tick_step(double length, int most) {
  const double raw = length / most;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

class Svg {
 public:
  Svg(const SimulationRequest& request, const SimulationReport& report)
      : request_(request),
        report_(report),
        apart_(request.costs.staging > 0),
        rows_(static_cast<double>(report.workers.size())),
        row_(std::min(kTallestRow, kMostPlotHeight / rows_)),
        scale_(report.makespan > 0 ? kPlotWidth / report.makespan : 0) {}

  std::string draw() {
    const double width = kLeft + kPlotWidth + kRight, height = kTop + rows_ * row_ + kBottom;
    add(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0:g} {1:g}" width="{0:g}" height="{1:g}" )"
        R"(font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#222">)",
        width, height);
    add(R"svg(<defs><pattern id="stall" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">)svg"
        R"svg(<rect width="5" height="5" fill="#efefef"/><rect width="1.4" height="5" fill="#a0a0a0"/></pattern>)svg"
        R"svg(<pattern id="wait" width="4" height="4" patternUnits="userSpaceOnUse"><rect width="4" height="4" fill="#fbf3e2"/>)svg"
        R"svg(<circle cx="2" cy="2" r="0.8" fill="#c99a3a"/></pattern></defs>)svg");
    add(R"(<rect width="100%" height="100%" fill="#fff"/>)");
    title();
    axis();
    bars();
    critical_path();
    worker_labels();
    legend(height);
    out_ += "</svg>\n";
    return std::move(out_);
  }

 private:
  template <class... Args>
  void add(fmt::format_string<Args...> text, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), text, std::forward<Args>(args)...);
    out_ += '\n';
  }
  double x(double time) const { return kLeft + time * scale_; }
  double y(int worker) const { return kTop + worker * row_; }
  double bar() const { return row_ > 6 ? row_ - 2 : row_ * 0.85; }
  /// With staging, adds have the lower third of a row.
  struct Lane {
    double top, height;
  };
  Lane lane(Activity activity) const {
    if (!apart_) return {0, bar()};
    const bool adder = activity == Activity::reduce || activity == Activity::wait;
    const double computing = bar() * 0.64;
    return adder ? Lane{computing, bar() - computing} : Lane{0, computing};
  }
  static std::string_view colour(const Interval& interval) {
    if (interval.activity == Activity::compute && interval.head % 2 == 1) return kOddHead;
    return kColours[static_cast<std::size_t>(interval.activity)];
  }

  void title() {
    add(R"(<text x="{}" y="22" font-size="15" font-weight="bold">{}, {} mask</text>)", kLeft, to_string(request_.schedule),
        to_string(request_.mask));
    add(R"(<text x="{}" y="42" fill="#555">{} KV tiles &#215; {} Q tiles, {} heads, {} workers, C = {:g}, R = {:g} &#183; makespan {:g}, )"
        R"(lower bound {:g}, stalls {:g} in total</text>)",
        kLeft, request_.kv_tiles, request_.q_tiles, request_.heads, request_.workers, request_.costs.compute.full,
        request_.costs.reduce, report_.makespan, report_.lower_bound, report_.stall_total);
  }

  void axis() {
    const double bottom = kTop + rows_ * row_;
    if (report_.makespan > 0) {
      const double step = tick_step(report_.makespan, 12);
      for (int tick = 0; tick * step <= report_.makespan * (1 + 1e-9); ++tick) {
        const double at = x(tick * step);
        add(R"(<line x1="{0:.2f}" y1="{1:g}" x2="{0:.2f}" y2="{2:g}" stroke="#ddd" stroke-width="0.8"/>)", at, kTop, bottom + 5);
        add(R"(<text x="{:.2f}" y="{:g}" text-anchor="middle">{:g}</text>)", at, bottom + 19, tick * step);
      }
    }
    add(R"(<line x1="{0:g}" y1="{1:g}" x2="{2:g}" y2="{1:g}" stroke="#222"/>)", kLeft, bottom, kLeft + kPlotWidth);
    add(R"(<text x="{:g}" y="{:g}" text-anchor="middle">time</text>)", kLeft + kPlotWidth / 2, bottom + 36);
  }

  void bars() {
    add(R"(<g shape-rendering="geometricPrecision">)");
    for (const Interval& bar_of : report_.intervals) {
      const double width = (bar_of.end - bar_of.start) * scale_;
      const Lane where = lane(bar_of.activity);
      add(R"(<rect x="{:.3f}" y="{:.2f}" width="{:.3f}" height="{:.2f}" fill="{}"><title>worker {}: {} of KV tile {}, Q tile {}, head {}, )"
          R"({:g} to {:g}</title></rect>)",
          x(bar_of.start), y(bar_of.worker) + where.top, width, where.height, colour(bar_of), bar_of.worker,
          to_string(bar_of.activity), bar_of.kv, bar_of.q, bar_of.head, bar_of.start, bar_of.end);
      // The Q tile's number, where it can be read.
      if (bar_of.activity == Activity::compute && width >= 16 && where.height >= 11) {
        numbered_ = true;
        add(R"(<text x="{:.2f}" y="{:.2f}" font-size="10" fill="#fff" text-anchor="middle" pointer-events="none">{}</text>)",
            x((bar_of.start + bar_of.end) / 2), y(bar_of.worker) + where.height / 2 + 3.5, bar_of.q);
      }
    }
    add("</g>");
  }

  void critical_path() {
    add(R"(<g fill="none" stroke="#000" stroke-width="1.4" pointer-events="none">)");
    const std::vector<Interval>& path = report_.critical_path;
    for (std::size_t i = 0; i < path.size();) {
      std::size_t end = i + 1;  // one outline for as long as the path stays on the worker
      while (end < path.size() && path[end].worker == path[i].worker) ++end;
      add(R"(<rect x="{:.3f}" y="{:.2f}" width="{:.3f}" height="{:.2f}"/>)", x(path[i].start), y(path[i].worker),
          (path[end - 1].end - path[i].start) * scale_, bar());
      i = end;
    }
    add("</g>");
  }

  void worker_labels() {
    const int every = std::max(1, static_cast<int>(std::ceil(13 / row_)));
    for (int worker = 0; worker < static_cast<int>(rows_); worker += every) {
      add(R"(<text x="{:g}" y="{:.2f}" text-anchor="end">{}</text>)", kLeft - 8, y(worker) + bar() / 2 + 4, worker);
    }
    add(R"svg(<text transform="translate(18 {:.2f}) rotate(-90)" text-anchor="middle">worker</text>)svg",
        kTop + rows_ * row_ / 2);
  }

  void legend(double height) {
    double at = kLeft;
    const double base = height - 12;
    const auto sign = [&](std::string_view colour, std::string_view text) {
      add(R"(<rect x="{:g}" y="{:g}" width="14" height="12" fill="{}"/><text x="{:g}" y="{:g}">{}</text>)", at, base - 10, colour,
          at + 19, base, text);
      at += 34 + 7.0 * static_cast<double>(text.size());
    };
    for (const Activity activity : {Activity::compute, Activity::reduce, Activity::stall, Activity::wait}) {
      if (activity == Activity::wait && !apart_) continue;
      sign(kColours[static_cast<std::size_t>(activity)], to_string(activity));
      if (activity == Activity::compute && request_.heads > 1) sign(kOddHead, "compute, odd head");
    }
    add(R"(<rect x="{:g}" y="{:g}" width="14" height="12" fill="none" stroke="#000" stroke-width="1.2"/><text x="{:g}" y="{:g}">critical )"
        R"(path</text>)",
        at, base - 10, at + 19, base);
    if (numbered_)
      add(R"(<text x="{:g}" y="{:g}" text-anchor="end" fill="#555">numbers in bars: Q tiles</text>)", kLeft + kPlotWidth, base);
  }

  const SimulationRequest& request_;
  const SimulationReport& report_;
  const bool apart_;  ///< adds have a lane of their own
  const double rows_;
  const double row_;
  const double scale_;
  bool numbered_ = false;
  std::string out_;
};

/// Time that each cell of a line spends on each activity.
using Line = std::vector<std::array<double, 3>>;  // compute, reduce, stall

void spread(Line& line, const Interval& interval, double cell) {
  const int last = static_cast<int>(line.size()) - 1;
  const int begin = std::clamp(static_cast<int>(interval.start / cell), 0, last);
  const int end = std::clamp(static_cast<int>(interval.end / cell), 0, last);
  for (int i = begin; i <= end; ++i) {
    const double overlap = std::min(interval.end, (i + 1) * cell) - std::max(interval.start, i * cell);
    line[static_cast<std::size_t>(i)][static_cast<std::size_t>(interval.activity)] += std::max(0.0, overlap);
  }
}

}  // namespace

Result<std::string> render_gantt_svg(const SimulationRequest& request, const SimulationReport& report) {
  if (report.intervals.size() > kMostBars) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("a chart of {} bars is more than the {} that viewers open; simulate fewer heads or tiles",
                             report.intervals.size(), kMostBars)};
  }
  return Svg(request, report).draw();
}

std::string render_occupancy(const SimulationReport& report, int columns, bool ascii) {
  constexpr std::size_t kMostLines = 40;
  const std::array<std::string_view, 4> signs =
      ascii ? std::array<std::string_view, 4>{"#", "+", ".", " "} : std::array<std::string_view, 4>{"█", "▒", "·", " "};
  columns = std::clamp(columns, 20, 400);
  if (report.workers.empty() || report.makespan <= 0) return "nothing to show: the makespan is 0\n";
  const double cell = report.makespan / columns;
  const std::size_t every = (report.workers.size() + kMostLines - 1) / kMostLines;
  std::vector<Line> lines((report.workers.size() + every - 1) / every, Line(static_cast<std::size_t>(columns)));
  for (const Interval& interval : report.intervals) {
    const bool adder = interval.activity == Activity::reduce || interval.activity == Activity::wait;
    if (report.adds_apart && adder) continue;
    const auto worker = static_cast<std::size_t>(interval.worker);
    if (worker % every == 0) spread(lines[worker / every], interval, cell);
  }
  std::string out;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    fmt::format_to(std::back_inserter(out), "{:>5} |", i * every);
    for (const auto& [compute, reduce, stall] : lines[i]) {
      const double idle = cell - compute - reduce - stall;
      const std::array<double, 4> parts{compute, reduce, stall, idle};
      out += signs[static_cast<std::size_t>(std::max_element(parts.begin(), parts.end()) - parts.begin())];
    }
    fmt::format_to(std::back_inserter(out), "| {:5.1f} %\n", 100 * report.workers[i * every].busy / report.makespan);
  }
  const std::string end = fmt::format("{:g}", report.makespan);
  fmt::format_to(std::back_inserter(out), "      0{:>{}}\n", end, columns);
  fmt::format_to(std::back_inserter(out), "      {} compute  {}{} stall{}\n", signs[0],
                 report.adds_apart ? "" : fmt::format("{} reduce  ", signs[1]), signs[2],
                 every > 1 ? fmt::format("; 1 of {} workers shown", every) : "");
  return out;
}

}  // namespace ordo
