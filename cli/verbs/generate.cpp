// ordo generate: the CUDA source of a plan's kernels.
#include <filesystem>
#include <memory>
#include <system_error>

#include "cli/options.hpp"
#include "cli/report.hpp"
#include "cli/text_file.hpp"
#include "cli/verbs/verbs.hpp"

namespace ordo::cli {
namespace {

struct GenerateOptions : Options {
  std::string kernel = "main";
  std::string output;
};

Result<std::vector<KernelSource>> pick(std::vector<KernelSource> sources, const std::string& kernel) {
  if (kernel == "all") return sources;
  std::string names;
  for (KernelSource& source : sources) {
    if (source.name == kernel) return std::vector{std::move(source)};
    names += source.name + ", ";
  }
  return Error{ErrorCode::invalid_argument,
               fmt::format("--kernel '{}' is not a kernel of this plan; it has {}or all", kernel, names)};
}

Result<int> generate_sources(const GenerateOptions& options) {
  const bool all = options.kernel == "all";
  if (options.output.empty() && (all || options.json)) {
    return Error{ErrorCode::invalid_argument,
                 all ? "--kernel all needs -o FOLDER" : "--json needs -o: without it the source is what is printed"};
  }
  auto made = choose(options);
  if (!made) return made.error();
  auto sources = generate(made->choice.plan, made->target);
  if (!sources) return sources.error();
  auto picked = pick(std::move(*sources), options.kernel);
  if (!picked) return picked.error();
  if (options.output.empty()) {
    print("{}", picked->front().text);
    return kOk;
  }
  std::error_code reason;
  if (all && !std::filesystem::create_directories(options.output, reason) && reason) {
    return Error{ErrorCode::io, fmt::format("{}: cannot make the folder: {}", options.output, reason.message())};
  }
  Json files = Json::array();
  for (const KernelSource& source : *picked) {
    const std::string path = all ? (std::filesystem::path(options.output) / (source.name + ".cu")).string() : options.output;
    if (auto written = write_text(path, source.text); !written) return written.error();
    if (!options.json)
      print("{}: kernel {}, entry {}, {} threads, {} bytes of dynamic shared memory\n", path, source.name, source.entry,
            source.threads, source.shared_bytes);
    files.push_back({{"path", path},
                     {"kernel", source.name},
                     {"entry", source.entry},
                     {"arch", source.arch},
                     {"threads", source.threads},
                     {"shared_bytes", source.shared_bytes}});
  }
  if (options.json) print_json({{"plan", to_text(made->choice.plan)}, {"files", std::move(files)}});
  return kOk;
}

}  // namespace

Verb add_generate(CLI::App& app) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* verb = app.add_subcommand("generate", "Write the CUDA source of a kernel");
  add_family(*verb, *options);
  verb->add_option("-o,--output", options->output, "File to write; a folder for --kernel all (standard output)")
      ->type_name("FILE");
  verb->add_option("--kernel", options->kernel,
                   "main, preprocess or another kernel of the plan (convert and scales, where it has them), or all (main)")
      ->type_name("NAME");
  add_shape(*verb, *options);
  add_plan(*verb, *options);
  add_target(*verb, *options);
  add_device(*verb, *options, "Generate for this GPU");
  add_cache(*verb, *options);
  add_json(*verb, *options);
  verb->footer(
      "Example:\n  ordo generate attention-backward --head-dim 128 --mask causal -o k.cu && nvcc -arch=sm_90a -std=c++20 -cubin "
      "k.cu\n"
      "The source is one file without includes.");
  return {verb, [options] { return generate_sources(*options); }};
}

}  // namespace ordo::cli
