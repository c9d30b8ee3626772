// RocksDB as a table of keys: fills it, or gets keys from it.
//
//     peer fill FOLDER KEYS
//     peer get FOLDER NUMBERS THREADS CACHE_BYTES GROUP
//
// `get` reads the numbers of keys from a file of u64. The first half warms up, the second one is measured. It prints one line of
// JSON. GROUP is the file by which a process joins the group that limits its memory.

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t KEY_BYTES = 16;
constexpr size_t VALUE_BYTES = 100;
constexpr uint64_t SPREAD = 0x9e3779b97f4a7c15;
constexpr uint64_t KEYS_OF_BATCH = 1000;

[[noreturn]] void fail(const std::string &why) {
    std::cerr << "rocksdb: " << why << std::endl;
    std::exit(1);
}

void check(const rocksdb::Status &status) {
    if (!status.ok()) fail(status.ToString());
}

// The key with this number, as bench/src/keys/data.rs has it.
std::array<char, KEY_BYTES> key_of(uint64_t number) {
    std::array<char, KEY_BYTES> key;
    uint64_t rest = number * SPREAD;
    for (size_t place = KEY_BYTES; place-- > 0; rest >>= 4) key[place] = "0123456789abcdef"[rest & 15];
    return key;
}

// A value that does not compress, and begins with the number.
std::array<char, VALUE_BYTES> value_of(uint64_t number) {
    std::array<char, VALUE_BYTES> value;
    std::memcpy(value.data(), &number, sizeof number);
    uint64_t state = number ^ SPREAD;
    for (size_t place = sizeof number; place < VALUE_BYTES; ++place) {
        state = state * 6364136223846793005 + 1442695040888963407;
        value[place] = static_cast<char>(state >> 56);
    }
    return value;
}

template <size_t Bytes>
rocksdb::Slice slice(const std::array<char, Bytes> &bytes) {
    return {bytes.data(), Bytes};
}

// Settings for gets of single existing keys.
rocksdb::Options options(size_t cache_bytes) {
    rocksdb::BlockBasedTableOptions table;
    table.block_cache = rocksdb::NewLRUCache(cache_bytes);
    table.cache_index_and_filter_blocks = true;
    table.pin_l0_filter_and_index_blocks_in_cache = true;
    table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
    table.data_block_index_type = rocksdb::BlockBasedTableOptions::kDataBlockBinaryAndHash;
    rocksdb::Options options;
    options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
    options.compression = rocksdb::kNoCompression;
    options.optimize_filters_for_hits = true;
    options.create_if_missing = true;
    return options;
}

void fill(const std::string &folder, uint64_t keys) {
    rocksdb::DB *opened = nullptr;
    check(rocksdb::DB::Open(options(64 << 20), folder, &opened));
    std::unique_ptr<rocksdb::DB> db(opened);
    rocksdb::WriteOptions unlogged;
    unlogged.disableWAL = true;
    for (uint64_t number = 0; number < keys;) {
        rocksdb::WriteBatch batch;
        for (uint64_t end = std::min(keys, number + KEYS_OF_BATCH); number < end; ++number)
            check(batch.Put(slice(key_of(number)), slice(value_of(number))));
        check(db->Write(unlogged, &batch));
    }
    check(db->Flush({}));
    // As few files as possible for a get to look into.
    check(db->CompactRange({}, nullptr, nullptr));
}

std::vector<uint64_t> numbers_of(const std::string &path) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    if (!file) fail("cannot read " + path);
    std::vector<uint64_t> numbers(static_cast<size_t>(file.tellg()) / sizeof(uint64_t));
    file.seekg(0);
    file.read(reinterpret_cast<char *>(numbers.data()), static_cast<std::streamsize>(numbers.size() * sizeof(uint64_t)));
    return numbers;
}

// Gets keys on some threads, the keys of which are `threads` apart. Returns the microseconds of each get.
std::vector<double> get_all(rocksdb::DB *db, const uint64_t *numbers, size_t count, size_t threads) {
    std::vector<double> micros(count);
    std::vector<std::thread> running;
    for (size_t thread = 0; thread < threads; ++thread) {
        running.emplace_back([&, thread] {
            std::string value;
            for (size_t place = thread; place < count; place += threads) {
                const uint64_t number = numbers[place];
                const auto begin = Clock::now();
                check(db->Get({}, slice(key_of(number)), &value));
                if (value.size() != VALUE_BYTES || std::memcmp(value.data(), &number, sizeof number) != 0)
                    fail("key " + std::to_string(number) + " has the value of another key");
                micros[place] = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
            }
        });
    }
    for (auto &thread : running) thread.join();
    return micros;
}

void get(const std::string &folder, const std::string &path, size_t threads, size_t cache_bytes, const std::string &group) {
    if (!(std::ofstream(group) << 0 << std::flush)) fail("cannot join the group of " + group);
    rocksdb::DB *opened = nullptr;
    check(rocksdb::DB::OpenForReadOnly(options(cache_bytes), folder, &opened));
    std::unique_ptr<rocksdb::DB> db(opened);
    const auto numbers = numbers_of(path);
    const size_t half = numbers.size() / 2;
    get_all(db.get(), numbers.data(), half, threads);
    const auto begin = Clock::now();
    auto micros = get_all(db.get(), numbers.data() + half, half, threads);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    std::sort(micros.begin(), micros.end());
    std::printf("{\"seconds\":%f,\"p99_us\":%f}\n", seconds, micros[micros.size() * 99 / 100]);
}

}  // namespace

int main(int count, char **words) {
    const std::string order = count > 1 ? words[1] : "";
    if (order == "fill" && count == 4) {
        fill(words[2], std::strtoull(words[3], nullptr, 10));
    } else if (order == "get" && count == 7) {
        get(words[2], words[3], std::strtoull(words[4], nullptr, 10), std::strtoull(words[5], nullptr, 10), words[6]);
    } else {
        fail("peer fill FOLDER KEYS, or peer get FOLDER NUMBERS THREADS CACHE_BYTES GROUP");
    }
}
