/* ranks: 1,2,3,4,6 ; nodes: 1,2,3 ; stock args: --mca osc sm,pt2pt */
/* Shared windows of the ranks of a node: where the parts lie, loads and stores ordered by
 * MPI_Win_sync and messages, parts of different sizes and of none, separate parts
 * (alloc_shared_noncontig), and operations on the same memory. MPI 3.1 section 11.2.3. */
#include "windows.h"

static MPI_Comm node;
static int rank, ranks;

/* All parts, by MPI_Win_shared_query; they follow each other unless that was not wanted. */
static void where(MPI_Win win, long *base, const MPI_Aint *bytes, bool contiguous, long **part)
{
    MPI_Aint size;
    int unit, first = 0;
    void *at;
    for (int k = 0; k < ranks; k++) {
        MPI_Win_shared_query(win, k, &size, &unit, &part[k]);
        if (contiguous || !stock_fails("osc/sm: sizes of separate parts are whole pages"))
            CHECK_EQ(size, bytes[k], "size of a part");
        CHECK_EQ(unit, 8, "unit of a part");
        if (!contiguous && bytes[k] == 0)
            CHECK(part[k] == NULL, "no address of nothing");
        if (contiguous && k > 0)
            CHECK((char *)part[k] == (char *)part[k - 1] + bytes[k - 1], "part %d follows", k);
    }
    CHECK(bytes[rank] == 0 || part[rank] == base, "my own part");
    while (first < ranks && bytes[first] == 0)
        first++;
    MPI_Win_shared_query(win, MPI_PROC_NULL, &size, &unit, &at);
    bool pages = !contiguous && stock_fails("osc/sm: sizes of separate parts are whole pages");
    if (first < ranks && !pages) {
        CHECK_EQ(size, bytes[first], "MPI_PROC_NULL: the first part that is not empty");
        CHECK(at == part[first], "its begin");
    }
}

/* Each rank writes into everybody's part, synchronized; then looks at all. */
static void stores(MPI_Win win, long **part, const MPI_Aint *bytes)
{
    MPI_Win_lock_all(MPI_MODE_NOCHECK, win);
    for (int round = 0; round < 50; round++) {
        STEP("loads and stores, round %d", round);
        for (int k = 0; k < ranks; k++)
            if (bytes[k])
                part[k][rank] = round * 1000 + rank * 10 + k;
        MPI_Win_sync(win);
        MPI_Barrier(node);
        MPI_Win_sync(win);
        for (int k = 0; k < ranks; k++)
            for (int i = 0; i < ranks && bytes[k]; i++)
                CHECK_EQ(part[k][i], round * 1000 + i * 10 + k, "stored by all");
        MPI_Win_sync(win);
        MPI_Barrier(node);
    }
    MPI_Win_unlock_all(win);
}

/* A word goes round by loads and stores only; who waits polls with MPI_Win_sync. */
static void token(MPI_Win win, long **part, const MPI_Aint *bytes)
{
    int owner = 0;
    while (owner < ranks && !bytes[owner])
        owner++;
    if (owner == ranks)
        return;
    volatile long *word = part[owner];
    MPI_Win_lock_all(MPI_MODE_NOCHECK, win);
    MPI_Barrier(node);
    if (rank == 0)
        *word = 0;
    MPI_Win_sync(win);
    MPI_Barrier(node);
    for (int round = 0; round < 20; round++) {
        STEP("token by loads and stores, round %d", round);
        while (*word != (long)round * ranks + rank)
            MPI_Win_sync(win);
        MPI_Win_sync(win);
        *word = (long)round * ranks + rank + 1;
        MPI_Win_sync(win);
    }
    MPI_Win_unlock_all(win);
    MPI_Barrier(node);
    CHECK_EQ(*word, 20l * ranks, "all rounds");
    MPI_Barrier(node);
}

/* Operations on the memory that is shared: atomic among each other, and seen by loads. */
static void operations(MPI_Win win, long **part, const MPI_Aint *bytes)
{
    enum { EACH = 50 };
    long one = 1, x, old;
    int owner = ranks - 1;
    while (owner >= 0 && !bytes[owner])
        owner--;
    if (owner < 0)
        return;
    if (rank == owner)
        part[owner][0] = part[owner][1] = 0;
    MPI_Barrier(node);
    STEP("operations on shared memory");
    MPI_Win_lock_all(0, win);
    for (int k = 0; k < EACH; k++) {
        MPI_Fetch_and_op(&one, &old, MPI_LONG, owner, 0, MPI_SUM, win);
        MPI_Win_flush(owner, win);
        CHECK(old >= k && old < (long)EACH * ranks, "counter %ld", old);
    }
    MPI_Win_unlock_all(win);
    for (int k = 0; k < EACH; k++) {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, owner, 0, win);
        if (k % 2) { /* by load and store, under the lock */
            part[owner][1]++;
        } else {
            MPI_Get(&x, 1, MPI_LONG, owner, 1, 1, MPI_LONG, win);
            MPI_Win_flush(owner, win);
            x++;
            MPI_Put(&x, 1, MPI_LONG, owner, 1, 1, MPI_LONG, win);
        }
        MPI_Win_unlock(owner, win);
    }
    MPI_Barrier(node);
    MPI_Win_lock(MPI_LOCK_SHARED, owner, 0, win);
    CHECK_EQ(part[owner][0], (long)EACH * ranks, "fetch_and_op");
    CHECK_EQ(part[owner][1], (long)EACH * ranks, "under the lock");
    MPI_Win_unlock(owner, win);
    MPI_Barrier(node);
    MPI_Win_fence(0, win);
    x = rank + 7;
    if (bytes[(rank + 1) % ranks])
        MPI_Put(&x, 1, MPI_LONG, (rank + 1) % ranks, 2, 1, MPI_LONG, win);
    MPI_Win_fence(MPI_MODE_NOSUCCEED, win);
    if (bytes[rank])
        CHECK_EQ(part[rank][2], (rank + ranks - 1) % ranks + 7, "put and load");
    MPI_Barrier(node);
}

/* kind 0: all alike, 1: larger and larger, 2: only the last rank has something. */
static void window_of(int kind, bool contiguous)
{
    MPI_Win win;
    MPI_Info info;
    MPI_Aint bytes[64];
    long *base = NULL, *part[64];
    for (int k = 0; k < ranks; k++)
        bytes[k] = kind == 0 ? 512 : kind == 1 ? 512 + 8 * k : k == ranks - 1 ? 4096 : 0;
    STEP("shared window, kind %d", kind);
    MPI_Info_create(&info);
    MPI_Info_set(info, "alloc_shared_noncontig", contiguous ? "false" : "true");
    MPI_Win_allocate_shared(bytes[rank], 8, info, node, &base, &win);
    MPI_Info_free(&info);
    where(win, base, bytes, contiguous, part);
    stores(win, part, bytes);
    token(win, part, bytes);
    operations(win, part, bytes);
    int *flavour, found;
    MPI_Win_get_attr(win, MPI_WIN_CREATE_FLAVOR, &flavour, &found);
    CHECK(found && *flavour == MPI_WIN_FLAVOR_SHARED, "flavour");
    MPI_Win_free(&win);
}

/* Is the file of the mapping that has this address gone? */
static bool has_no_name(const void *address)
{
    char line[512];
    bool is_deleted = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx", &from, &to) == 2 && from <= (unsigned long)address
            && (unsigned long)address < to)
            is_deleted = strstr(line, "(deleted)") != NULL;
    }
    if (maps)
        fclose(maps);
    return is_deleted;
}

enum { NAMES = 64 };

/* Somebody else has files, or links to a file of the user's, under all names that could be guessed:
 * by user, process and communicator. No window takes one of them, and none keeps a name. */
static void names(void)
{
    MPI_Win win;
    long *base, *first;
    MPI_Aint size;
    int unit;
    char name[128], theirs[128], text[16];
    const int user = (int)geteuid(), process = (int)getpid();
    STEP("names that could be guessed");
    snprintf(theirs, sizeof theirs, "/dev/shm/theirs.%d", process);
    if (rank == 0) {
        FILE *file = fopen(theirs, "w");
        CHECK(file && fputs("theirs", file) >= 0 && fclose(file) == 0, "a file in /dev/shm");
    }
    for (int k = 0; k < NAMES && rank == 0; k++) {
        snprintf(name, sizeof name, "/dev/shm/rustbtl_win.%d.%d.%d", user, process, k);
        CHECK(symlink(theirs, name) == 0, "a link in /dev/shm");
    }
    MPI_Barrier(node);
    MPI_Win_allocate_shared(4096, 8, MPI_INFO_NULL, node, &base, &win);
    MPI_Win_shared_query(win, 0, &size, &unit, &first);
    memset(base, 0x5a, 4096);
    if (ranks > 1)
        CHECK(has_no_name(base) && has_no_name(first), "the window's memory has no name");
    MPI_Barrier(node);
    if (rank == 0) {
        FILE *file = fopen(theirs, "r");
        CHECK(file && fgets(text, sizeof text, file) && !strcmp(text, "theirs"), "it is as it was");
        if (file)
            fclose(file);
        unlink(theirs);
    }
    for (int k = 0; k < NAMES && rank == 0; k++) {
        snprintf(name, sizeof name, "/dev/shm/rustbtl_win.%d.%d.%d", user, process, k);
        CHECK(unlink(name) == 0, "the link is still there");
    }
    MPI_Win_free(&win);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &rank);
    MPI_Comm_size(node, &ranks);
    for (int kind = 0; kind < 3; kind++) {
        window_of(kind, true);
        window_of(kind, false);
    }
    names();
    /* None where ranks are on several nodes: an error of its own class, and nothing is left over. */
    if (!on_one_node(MPI_COMM_WORLD)) {
        MPI_Win win;
        void *base;
        MPI_Comm copy;
        STEP("shared over nodes");
        MPI_Comm_dup(MPI_COMM_WORLD, &copy);
        MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN);
        EXPECT_CLASS(MPI_Win_allocate_shared(64, 8, MPI_INFO_NULL, copy, &base, &win),
                     MPI_ERR_RMA_SHARED);
        MPI_Barrier(copy);
        MPI_Comm_free(&copy);
    }
    MPI_Comm_free(&node);
    return check_end();
}
