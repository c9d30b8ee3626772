// RocksDB as a table of keys: fills it, gets keys from it, or updates keys of it.
//
//     peer fill FOLDER KEYS
//     peer get FOLDER NUMBERS THREADS CACHE_BYTES GROUP
//     peer update FOLDER KEYS SECONDS THREADS CACHE_BYTES GROUP
//
// `get` reads the numbers of keys from a file of u64. The first half warms up, the second one is measured. It prints one line of
// JSON. `update` reads, changes and writes random keys, in each thread others, for some seconds to warm up and for as many that are
// measured. There is no write-ahead log: changes are flushed each second, as by checkpoints of Flink.
// GROUP is the file by which a process joins the group that limits its memory.

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iostream>
#include <memory>
#include <mutex>
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

void join(const std::string &group) {
    if (!(std::ofstream(group) << 0 << std::flush)) fail("cannot join the group of " + group);
}

// Adds one to the count with which the values of random keys begin, until the time is over. Each thread has keys of its own. Returns
// how many were updated.
uint64_t update_all(rocksdb::DB *db, uint64_t keys, Clock::time_point until, uint64_t threads, uint64_t seed) {
    std::atomic<uint64_t> updates = 0;
    std::vector<std::thread> running;
    for (uint64_t thread = 0; thread < threads; ++thread) {
        running.emplace_back([&updates, db, keys, until, threads, seed, thread] {
            rocksdb::WriteOptions unlogged;
            unlogged.disableWAL = true;
            std::string value;
            for (uint64_t place = seed + thread; Clock::now() < until; place += threads) {
                const uint64_t number = ((place * SPREAD) >> 20) % (keys / threads) * threads + thread;
                check(db->Get({}, slice(key_of(number)), &value));
                if (value.size() != VALUE_BYTES) fail("key " + std::to_string(number) + " has another value");
                uint64_t count;
                std::memcpy(&count, value.data(), sizeof count);
                ++count;
                std::memcpy(value.data(), &count, sizeof count);
                check(db->Put(unlogged, slice(key_of(number)), value));
                ++updates;
            }
        });
    }
    for (auto &thread : running) thread.join();
    return updates;
}

void update(const std::string &folder, uint64_t keys, uint64_t seconds, uint64_t threads, size_t cache_bytes, const std::string &group) {
    join(group);
    rocksdb::DB *opened = nullptr;
    rocksdb::Options updated = options(cache_bytes);
    updated.write_buffer_size = cache_bytes / 4;
    check(rocksdb::DB::Open(updated, folder, &opened));
    std::unique_ptr<rocksdb::DB> db(opened);
    std::mutex mutex;
    std::condition_variable ended;
    bool is_over = false;
    std::thread flushes([&] {
        std::unique_lock lock(mutex);
        while (!ended.wait_for(lock, std::chrono::seconds(1), [&] { return is_over; })) check(db->Flush({}));
    });
    const uint64_t seed = static_cast<uint64_t>(std::time(nullptr)) << 24;
    const auto time = std::chrono::seconds(seconds);
    update_all(db.get(), keys, Clock::now() + time, threads, seed);
    const auto begin = Clock::now();
    const uint64_t updates = update_all(db.get(), keys, begin + time, threads, seed + (1 << 23));
    const double took = std::chrono::duration<double>(Clock::now() - begin).count();
    {
        std::lock_guard lock(mutex);
        is_over = true;
    }
    ended.notify_all();
    flushes.join();
    std::printf("{\"updates\":%llu,\"seconds\":%f}\n", static_cast<unsigned long long>(updates), took);
}

void get(const std::string &folder, const std::string &path, size_t threads, size_t cache_bytes, const std::string &group) {
    join(group);
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
    } else if (order == "update" && count == 8) {
        const auto number = [&](int place) { return std::strtoull(words[place], nullptr, 10); };
        update(words[2], number(3), number(4), number(5), number(6), words[7]);
    } else {
        fail("peer fill FOLDER KEYS, peer get FOLDER NUMBERS THREADS CACHE_BYTES GROUP, or peer update FOLDER KEYS UPDATES THREADS "
             "CACHE_BYTES GROUP");
    }
}
