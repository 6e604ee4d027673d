#include "cache/measurements.hpp"

#include <fmt/format.h>

#include <bit>
#include <filesystem>
#include <mutex>

#include "cache/connection.hpp"
#include "codegen/hash/sha256.hpp"

namespace ordo::cache {
namespace {

constexpr std::string_view kColumns =
    "problem, plan, kernels, target, device, sm_count, driver, toolchain, policy, round, ms_median, ms_min, launches, clock_mhz, "
    "watts, digest";
constexpr int kDigestColumn = 15;

/// Over all of a row, so that a damaged one shows.
std::string digest_of(const Measurement& m) {
  std::string text;
  for (const std::string* part :
       {&m.problem, &m.plan, &m.kernels, &m.on.target, &m.on.device, &m.on.driver, &m.on.toolchain, &m.policy})
    text += fmt::format("{}:{}", part->size(), *part);
  text += fmt::format("{},{},{}", m.on.sm_count, m.round, m.launches);
  for (const double value : {m.ms_median, m.ms_min, m.clock_mhz, m.watts})
    text += fmt::format(",{}", std::bit_cast<std::uint64_t>(value));
  return sha256_hex(text);
}

Measurement measurement_of(const Statement& row) {
  Measurement m;
  m.problem = row.text(0);
  m.plan = row.text(1);
  m.kernels = row.text(2);
  m.on = {row.text(3), row.text(4), static_cast<int>(row.integer(5)), row.text(6), row.text(7)};
  m.policy = row.text(8);
  m.round = static_cast<int>(row.integer(9));
  m.ms_median = row.real(10);
  m.ms_min = row.real(11);
  m.launches = static_cast<int>(row.integer(12));
  m.clock_mhz = row.real(13);
  m.watts = row.real(14);
  return m;
}

/// A connection with the statements of this file. `there`: the file has the table; one of an older schema that cannot be written
/// has not.
struct Open {
  std::unique_ptr<Connection> connection;
  bool there = false;
  Statement insert, of, problems;

  static Result<std::unique_ptr<Open>> at(const std::string& path) {
    auto connection = Connection::open(path);
    if (!connection) return connection.error();
    auto open = std::make_unique<Open>();
    open->connection = *std::move(connection);
    sqlite3* db = open->connection->db.get();
    const auto tables = query_integer(db, "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'measurements'");
    if (!tables) return tables.error();
    open->there = *tables > 0;
    if (!open->there) return open;
    const std::string columns(kColumns);
    for (const auto& [statement, sql] :
         {std::pair{&open->insert, "INSERT OR IGNORE INTO measurements(" + columns +
                                       ", created) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, "
                                       "CAST(strftime('%s', 'now') AS INTEGER))"},
          {&open->of, "SELECT " + columns + " FROM measurements WHERE problem = ?1 ORDER BY id"},
          {&open->problems, std::string("SELECT DISTINCT problem FROM measurements ORDER BY problem")}}) {
      auto prepared = Statement::prepare(db, sql);
      if (!prepared) return prepared.error();
      *statement = *std::move(prepared);
    }
    return open;
  }
};

Result<void> insert(Statement& statement, const Measurement& m) {
  const std::string digest = digest_of(m);
  return statement.bind(1, m.problem)
      .bind(2, m.plan)
      .bind(3, m.kernels)
      .bind(4, m.on.target)
      .bind(5, m.on.device)
      .bind(6, std::int64_t{m.on.sm_count})
      .bind(7, m.on.driver)
      .bind(8, m.on.toolchain)
      .bind(9, m.policy)
      .bind(10, std::int64_t{m.round})
      .bind(11, m.ms_median)
      .bind(12, m.ms_min)
      .bind(13, std::int64_t{m.launches})
      .bind(14, m.clock_mhz)
      .bind(15, m.watts)
      .bind(16, digest)
      .run();
}

}  // namespace

struct Measurements::Impl {
  std::string path;
  std::mutex mutex;
  std::unique_ptr<Open> open;

  /// Leaves the connection of a fork's parent open: closing it here would drop the parent's locks.
  void abandon() { [[maybe_unused]] const Open* parents = open.release(); }

  /// Hold `mutex`.
  Result<Open*> get() {
    if (open && open->connection->process == ::getpid()) return open.get();
    abandon();
    auto fresh = Open::at(path);
    if (!fresh) return fresh.error();
    open = *std::move(fresh);
    return open.get();
  }

  ~Impl() {
    if (open && open->connection->process != ::getpid()) abandon();
  }
};

Measurements::Measurements(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

const std::string& Measurements::path() const { return impl_->path; }

Result<Measurements> Measurements::open(const std::string& path) {
  if (path.empty()) return Error{ErrorCode::cache, "The cache needs the name of a file; an empty one was given."};
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) return Error{ErrorCode::cache, fmt::format("The folder of the cache {} cannot be made: {}.", path, error.message())};
  auto impl = std::make_shared<Impl>();
  impl->path = path;
  {
    const std::scoped_lock lock(impl->mutex);
    if (auto open = impl->get(); !open) return open.error();
  }
  return Measurements(std::move(impl));
}

Result<Measurements> Measurements::in_memory() { return open(":memory:"); }

Result<void> Measurements::put(const std::vector<Measurement>& rows) {
  const std::scoped_lock lock(impl_->mutex);
  auto open = impl_->get();
  if (!open) return open.error();
  if (!(*open)->there || !(*open)->connection->writable)
    return Error{ErrorCode::cache, fmt::format("The cache {} is read-only: its file or folder cannot be written, or a newer ordo "
                                               "made it. Measured times are not kept.",
                                               impl_->path)};
  auto transaction = Transaction::begin((*open)->connection->db.get());
  if (!transaction) return transaction.error();
  for (const Measurement& row : rows)
    if (auto ok = insert((*open)->insert, row); !ok) return ok;
  return transaction->commit();
}

Result<std::vector<Measurement>> Measurements::of(const std::string& problem) const {
  const std::scoped_lock lock(impl_->mutex);
  auto open = impl_->get();
  if (!open) return open.error();
  std::vector<Measurement> out;
  if (!(*open)->there) return out;
  Statement& rows = (*open)->of;
  const Result<void> read = rows.bind(1, problem).each([&] {
    Measurement m = measurement_of(rows);
    if (rows.text(kDigestColumn) == digest_of(m)) out.push_back(std::move(m));
  });
  if (!read) return read.error();
  return out;
}

Result<std::vector<std::string>> Measurements::problems() const {
  const std::scoped_lock lock(impl_->mutex);
  auto open = impl_->get();
  if (!open) return open.error();
  std::vector<std::string> out;
  if (!(*open)->there) return out;
  Statement& rows = (*open)->problems;
  const Result<void> read = rows.each([&] { out.push_back(rows.text(0)); });
  if (!read) return read.error();
  return out;
}

}  // namespace ordo::cache
