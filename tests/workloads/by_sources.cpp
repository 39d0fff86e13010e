/* Rank 1 reads a clock or draws a random number in each round, another one each time, and sends all
 * what it got. A rank 1 that gets something else in replay contradicts what others have received.
 *
 * usage: by_sources ITERATIONS GATE [threads]
 *        by_sources ITERATIONS FOLDER killed [threads]
 *
 * It ends some rounds after GATE (see gate.h) has let it go so far; only rank 0 looks at that. With
 * KILLED the gate is FOLDER/checkpoint, and a counted number of rounds behind it, in which each
 * source was read three times, rank 1 kills itself, once. With THREADS, it is MPI_THREAD_MULTIPLE,
 * and another thread reads clocks and draws, too. */
/* Its C++ functions are gone from MPI, and do not compile without warnings. */
#define OMPI_SKIP_MPICXX 1
#include <dlfcn.h>
#include <fcntl.h>
#include <mpi.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/times.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gate.h"

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash ^= value + 0x9E3779B97F4A7C15ull + (hash << 6) + (hash >> 2);
    hash *= 0xFF51AFD7ED558CCDull;
    return hash ^ (hash >> 33);
}

static uint64_t kernel_clock(clockid_t id)
{
    timespec time;
    if (clock_gettime(id, &time))
        abort();
    return uint64_t(time.tv_sec) * 1000000000 + uint64_t(time.tv_nsec);
}

static uint64_t from_descriptor(const char *path, bool at)
{
    uint64_t word = 0;
    int fd = at ? openat(AT_FDCWD, path, O_RDONLY) : open(path, O_RDONLY);
    if (fd < 0 || read(fd, &word, sizeof word) != sizeof word)
        abort();
    close(fd);
    return word;
}

static uint64_t from_stream()
{
    uint64_t word = 0;
    FILE *file = fopen("/dev/urandom", "rb");
    if (!file || fread(&word, sizeof word, 1, file) != 1)
        abort();
    fclose(file);
    return word;
}

static uint64_t from_cxx_stream()
{
    uint64_t word = 0;
    std::ifstream file("/dev/urandom", std::ios::binary);
    if (!file.read(reinterpret_cast<char *>(&word), sizeof word))
        abort();
    return word;
}

static uint64_t looks(double seconds)
{
    using clock = std::chrono::steady_clock;
    uint64_t count = 0;
    for (auto end = clock::now() + std::chrono::duration<double>(seconds); clock::now() < end;)
        count++;
    return count;
}

static uint64_t usage_us()
{
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return uint64_t(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static uint64_t all_times()
{
    tms part;
    uint64_t hash = uint64_t(times(&part));
    return mix(mix(hash, uint64_t(part.tms_utime)), uint64_t(part.tms_stime));
}

static uint64_t microseconds()
{
    timeval time;
    gettimeofday(&time, nullptr);
    return uint64_t(time.tv_sec) * 1000000 + uint64_t(time.tv_usec);
}

static uint64_t random_word()
{
    uint64_t word;
    if (getrandom(&word, sizeof word, 0) != sizeof word)
        abort();
    return word;
}

static uint64_t many_random_bytes()
{
    static unsigned char bytes[100000];
    uint64_t hash = 0;
    for (size_t done = 0; done < sizeof bytes;)
        done += size_t(getrandom(bytes + done, sizeof bytes - done, 0));
    for (unsigned char byte : bytes)
        hash = mix(hash, byte);
    return hash;
}

static uint64_t entropy()
{
    uint64_t word;
    if (getentropy(&word, sizeof word))
        abort();
    return word;
}

static uint64_t looked_up()
{
    typedef int (*function)(clockid_t, timespec *);
    timespec time;
    function look = reinterpret_cast<function>(dlsym(RTLD_DEFAULT, "clock_gettime"));
    if (!look || look(CLOCK_MONOTONIC, &time))
        abort();
    return uint64_t(time.tv_nsec);
}

static uint64_t of_c11()
{
    timespec time;
    if (timespec_get(&time, TIME_UTC) != TIME_UTC)
        abort();
    return uint64_t(time.tv_nsec);
}

#if __GLIBC_PREREQ(2, 36)
static uint64_t arc4_bytes()
{
    uint64_t word;
    arc4random_buf(&word, sizeof word);
    return word;
}
#endif

static uint64_t chrono_now()
{
    return uint64_t(std::chrono::steady_clock::now().time_since_epoch().count() ^
                    std::chrono::system_clock::now().time_since_epoch().count());
}

static const struct {
    const char *name;
    uint64_t (*get)();
} sources[] = {
    { "CLOCK_REALTIME", [] { return kernel_clock(CLOCK_REALTIME); } },
    { "CLOCK_MONOTONIC", [] { return kernel_clock(CLOCK_MONOTONIC); } },
    { "CLOCK_MONOTONIC_RAW", [] { return kernel_clock(CLOCK_MONOTONIC_RAW); } },
    { "CLOCK_MONOTONIC_COARSE", [] { return kernel_clock(CLOCK_MONOTONIC_COARSE); } },
    { "CLOCK_REALTIME_COARSE", [] { return kernel_clock(CLOCK_REALTIME_COARSE); } },
    { "CLOCK_BOOTTIME", [] { return kernel_clock(CLOCK_BOOTTIME); } },
    { "CLOCK_TAI", [] { return kernel_clock(CLOCK_TAI); } },
    { "clock_gettime, looked up", looked_up },
    { "timespec_get", of_c11 },
    { "CLOCK_PROCESS_CPUTIME_ID", [] { return kernel_clock(CLOCK_PROCESS_CPUTIME_ID); } },
    { "CLOCK_THREAD_CPUTIME_ID", [] { return kernel_clock(CLOCK_THREAD_CPUTIME_ID); } },
    { "gettimeofday", microseconds },
    { "clock", [] { return uint64_t(clock()); } },
    { "times", all_times },
    { "getrusage", usage_us },
    { "std::chrono", chrono_now },
    { "a loop on a clock", [] { return looks(200e-6); } },
    { "getrandom", random_word },
    { "getrandom, many bytes", many_random_bytes },
    { "getentropy", entropy },
    { "/dev/urandom, open", [] { return from_descriptor("/dev/urandom", false); } },
    { "/dev/random, openat", [] { return from_descriptor("/dev/random", true); } },
    { "/dev/urandom, fopen", from_stream },
    { "/dev/urandom, ifstream", from_cxx_stream },
    { "std::random_device", [] { return uint64_t(std::random_device()()); } },
#if __GLIBC_PREREQ(2, 36)
    { "arc4random", [] { return uint64_t(arc4random()); } },
    { "arc4random_buf", arc4_bytes },
    { "arc4random_uniform", [] { return uint64_t(arc4random_uniform(1u << 30)); } },
#endif
};
constexpr int SOURCES = sizeof sources / sizeof *sources;
/* The first ones are clocks, of which no reading is less than the one before. */
enum { CLOCKS = 7, ROUND_US = 500, ROUNDS_AFTER = 200, LOOK_EACH = 10 };
enum { ROUNDS_TO_FAILURE = 3 * SOURCES };

int main(int argc, char **argv)
{
    bool threads = false, killed = false;
    for (int k = 3; k < argc; k++) {
        threads |= !strcmp(argv[k], "threads");
        killed |= !strcmp(argv[k], "killed");
    }
    int me, np, iterations = argc > 1 ? atoi(argv[1]) : 100, limit = 0, left = -1, given;
    const std::string where = argc > 2 ? argv[2] : "", failed = where + "/failed";
    const std::string gate = killed ? where + "/checkpoint" : where;
    MPI_Init_thread(&argc, &argv, threads ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &given);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    std::atomic<bool> over(false);
    std::thread other;
    if (threads)
        other = std::thread([&over] {
            while (!over) {
                kernel_clock(CLOCK_MONOTONIC);
                random_word();
                usleep(100);
            }
        });
    std::vector<uint64_t> hashes(SOURCES, 1), first;
    uint64_t last[SOURCES] = { 0 };
    int backwards = 0;
    for (int i = 0; left != 0; i++) {
        uint64_t got = 0;
        if (me == 1) {
            got = sources[i % SOURCES].get();
            if (i % SOURCES < CLOCKS)
                backwards += got < last[i % SOURCES];
            last[i % SOURCES] = got;
        }
        MPI_Bcast(&got, 1, MPI_UINT64_T, 1, MPI_COMM_WORLD);
        hashes[size_t(i % SOURCES)] = mix(hashes[size_t(i % SOURCES)], got);
        if (left < 0 && i % LOOK_EACH == 0 &&
            (gate.empty() || (limit = read_gate(gate.c_str())) >= iterations))
            left = ROUNDS_AFTER + (killed ? ROUNDS_TO_FAILURE : 0);
        /* By the kernel's call: what is made by the library's is gone after a rollback. */
        if (killed && left == ROUNDS_AFTER && me == 1 && !syscall(SYS_mkdir, failed.c_str(), 0700))
            raise(SIGKILL);
        if (left > 0)
            left--;
        usleep(ROUND_US);
    }
    first = hashes;
    MPI_Bcast(first.data(), SOURCES, MPI_UINT64_T, 1, MPI_COMM_WORLD);
    int wrong = 0;
    for (size_t k = 0; k < SOURCES; k++)
        if (first[k] != hashes[k]) {
            fprintf(stderr, "rank %d: rank 1 got something else from %s\n", me, sources[k].name);
            wrong++;
        }
    if (backwards) {
        fprintf(stderr, "rank %d: a clock went backwards\n", me);
        wrong = SOURCES + 1;
    }
    MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    over = true;
    if (threads)
        other.join();
    if (me == 0 && wrong)
        printf("HASH contradicts itself in %d of %d sources\n", wrong, SOURCES);
    else if (me == 0)
        printf("HASH consistent\n");
    MPI_Finalize();
    return 0;
}
