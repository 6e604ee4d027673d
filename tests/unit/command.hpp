// Runs the real command for tests: exit code, standard output, standard error.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace ordo::test {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// A folder of its own for files and the cache, removed at the end.
class CommandFolder {
 public:
  CommandFolder() {
    std::string name = (fs::temp_directory_path() / "ordo_cli_XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~CommandFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  CommandFolder(const CommandFolder&) = delete;
  CommandFolder& operator=(const CommandFolder&) = delete;
  [[nodiscard]] std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

inline std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_file(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

struct Outcome {
  int code = -1;  ///< exit code; 1000 + signal when it was killed
  std::string out, err;
};

// Runs the `ordo` that stands beside this test program in `folder`, where its cache is too.
inline Outcome ordo_command(const CommandFolder& folder, const std::vector<std::string>& arguments,
                            const std::vector<std::string>& extra_environment = {}) {
  const std::string binary = (fs::read_symlink("/proc/self/exe").parent_path() / "ordo").string();
  REQUIRE_MESSAGE(fs::exists(binary), "build the target ordo_cli first: ", binary);
  std::vector<std::string> words = {binary};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = extra_environment;
  variables.push_back("ORDO_CACHE=" + folder.file("cache.db"));
  variables.push_back("XDG_CONFIG_HOME=" + folder.file("config"));
  for (char** entry = environ; *entry != nullptr; ++entry) variables.emplace_back(*entry);  // of equal names the first counts
  const auto pointers = [](std::vector<std::string>& from) {
    std::vector<char*> out;
    for (std::string& text : from) out.push_back(text.data());
    out.push_back(nullptr);
    return out;
  };
  const std::string out = folder.file("stdout.txt"), err = folder.file("stderr.txt");
  posix_spawn_file_actions_t actions;
  REQUIRE(posix_spawn_file_actions_init(&actions) == 0);
  posix_spawn_file_actions_addchdir_np(&actions, folder.file("").c_str());
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  pid_t child = 0;
  REQUIRE(posix_spawn(&child, binary.c_str(), &actions, nullptr, pointers(words).data(), pointers(variables).data()) == 0);
  posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status), slurp(out), slurp(err)};
}

inline std::vector<std::string> words(const std::string& line) {
  std::istringstream in(line);
  return {std::istream_iterator<std::string>(in), {}};
}

inline Outcome ordo_command(const CommandFolder& folder, const std::string& line) { return ordo_command(folder, words(line)); }

inline Json json_of(const Outcome& outcome) {
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  Json json = Json::parse(outcome.out, nullptr, false);
  REQUIRE_FALSE(json.is_discarded());
  return json;
}

}  // namespace ordo::test
