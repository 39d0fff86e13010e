/*
 * The interface between the C side of the BTL and the transports, which are Rust and in another DSO
 * (mca_vprotocol_correlated.so). Mirrored by component/src/btl/exports.rs. No Open MPI type in it.
 */
#ifndef BTL_RUSTBTL_CORE_H
#define BTL_RUSTBTL_CORE_H

#include <stddef.h>
#include <stdint.h>

#define RUSTBTL_BTL_VERSION 2u

/* How a peer is reached. */
#define RUSTBTL_BTL_NODE 0    /* memory that the ranks of a node share */
#define RUSTBTL_BTL_NETWORK 1 /* TCP */

/* Open MPI's third module has operations on memory alone, and reaches everybody. */
#define RUSTBTL_BTL_ONE_SIDED 2
#define RUSTBTL_BTL_MODULES 3

/* What became of a message. */
#define RUSTBTL_BTL_DONE 0
#define RUSTBTL_BTL_NO_ROOM 1 /* send: it waits, `over` follows; send_now: nothing has happened */
#define RUSTBTL_BTL_DOWN (-1) /* the peer is lost or has finished; read, write: not permitted */

typedef struct rustbtl_btl_t rustbtl_btl_t;
typedef struct rustbtl_btl_peer_t rustbtl_btl_peer_t;

typedef struct rustbtl_btl_settings_t {
    const char *shm_directory;
    const char *tcp_if_include;
    const char *tcp_if_exclude;
    uint64_t shm_ring;
    uint64_t tcp_socket_buffer;
    uint32_t tcp_max_bytes;
    uint32_t tcp_connect_timeout;
    uint32_t tcp_silence_timeout;
    uint8_t shm;
    uint8_t single_copy;
    uint8_t tcp_ipv4;
    uint8_t tcp_ipv6;
    uint8_t tcp_encrypt;
    uint8_t threads;
} rustbtl_btl_settings_t;

_Static_assert(64 == sizeof(rustbtl_btl_settings_t), "mirrored by component/src/btl/exports.rs");
_Static_assert(52 == offsetof(rustbtl_btl_settings_t, shm), "mirrored as well");

typedef struct rustbtl_btl_place_t {
    uint32_t job;
    uint32_t rank;
    uint32_t size;
    uint32_t local_size;
    const uint32_t *local_ranks; /* ascending */
    const char *node;
} rustbtl_btl_place_t;

_Static_assert(32 == sizeof(rustbtl_btl_place_t), "mirrored by component/src/btl/exports.rs");

/* What Rust calls, in `progress` alone. */
typedef struct rustbtl_btl_calls_t {
    /* A message of process number `from` is here; its memory is valid during the call. */
    void (*arrived)(int32_t way, uint32_t from, uint8_t tag, const uint8_t *start, size_t bytes);
    /* A message that waited is over. */
    void (*over)(void *cookie, int32_t accepted);
    /* A process is not reached any more. */
    void (*lost)(uint32_t job, uint32_t rank, const char *reason);
    /* For the user. */
    void (*notice)(const char *text);
} rustbtl_btl_calls_t;

typedef struct rustbtl_btl_message_t {
    const uint8_t *first;
    size_t first_bytes;
    const uint8_t *second;
    size_t second_bytes;
} rustbtl_btl_message_t;

/* What becomes of a value in memory. */
#define RUSTBTL_BTL_ADD 1
#define RUSTBTL_BTL_AND 2
#define RUSTBTL_BTL_OR 3
#define RUSTBTL_BTL_XOR 4
#define RUSTBTL_BTL_SWAP 5
#define RUSTBTL_BTL_COMPARE_AND_SWAP 6

typedef struct rustbtl_btl_atomic_t {
    uint64_t address;
    uint64_t operand;
    uint64_t compare; /* compare and swap: what must be there */
    uint8_t change;
    uint8_t narrow; /* 4 bytes; else 8 */
} rustbtl_btl_atomic_t;

_Static_assert(32 == sizeof(rustbtl_btl_atomic_t), "mirrored by component/src/btl/exports.rs");

/* Room for a text that ends with 0. */
typedef struct rustbtl_btl_text_t {
    char *start;
    size_t bytes;
} rustbtl_btl_text_t;

typedef struct rustbtl_btl_functions_t {
    uint32_t version;
    /* NULL: why, for the user. */
    rustbtl_btl_t *(*open)(const rustbtl_btl_settings_t *settings, const rustbtl_btl_place_t *place,
                           const rustbtl_btl_calls_t *calls, rustbtl_btl_text_t why);
    /* The largest message within a node; ring 0: by the number of ranks there. */
    uint64_t (*node_bytes_max)(uint64_t ring, uint32_t ranks);
    /* The file that has to go if the job dies early. 0: there is none. */
    int32_t (*file)(rustbtl_btl_t *btl, rustbtl_btl_text_t into);
    /* What others need to know of this process; its bytes, also if there was no room. */
    size_t (*card)(rustbtl_btl_t *btl, uint8_t *into, size_t room);
    /* The rank whose card `attach` needs; -1: nothing is to be attached (any more). */
    int64_t (*leader)(rustbtl_btl_t *btl);
    int32_t (*attach)(rustbtl_btl_t *btl, const uint8_t *card, size_t bytes,
                      rustbtl_btl_text_t why);
    /* NULL without a text: a process of another mpirun. */
    rustbtl_btl_peer_t *(*meet)(rustbtl_btl_t *btl, uint32_t job, uint32_t rank,
                                const uint8_t *card, size_t bytes, rustbtl_btl_text_t why);
    int32_t (*way)(const rustbtl_btl_peer_t *peer);
    /* Its number: its rank, in the first job of an mpirun. */
    uint32_t (*number)(const rustbtl_btl_peer_t *peer);
    void (*forget)(rustbtl_btl_peer_t *peer);
    /* The memory of the message stays as it is until it is done or over. */
    int32_t (*send)(rustbtl_btl_t *btl, const rustbtl_btl_peer_t *to, uint8_t tag,
                    const rustbtl_btl_message_t *message, void *cookie);
    int32_t (*send_now)(rustbtl_btl_t *btl, const rustbtl_btl_peer_t *to, uint8_t tag,
                        const rustbtl_btl_message_t *message);
    /* The same; `pack` writes the second piece, if there is room. */
    int32_t (*send_packed)(rustbtl_btl_t *btl, const rustbtl_btl_peer_t *to, uint8_t tag,
                           const rustbtl_btl_message_t *message,
                           void (*pack)(void *of, uint8_t *into, size_t bytes), void *of);
    /* Memory of a peer of this node. */
    int32_t (*read)(rustbtl_btl_t *btl, const rustbtl_btl_peer_t *of, uint64_t from, uint8_t *into,
                    size_t bytes);
    int32_t (*write)(rustbtl_btl_t *btl, const rustbtl_btl_peer_t *of, uint64_t to,
                     const uint8_t *from, size_t bytes);
    /* Write memory of a peer of another node; what it is written from stays until it is done or
     * over. It is there before any message that is sent afterwards. */
    int32_t (*put)(rustbtl_btl_t *btl, const rustbtl_btl_peer_t *of, uint64_t to,
                   const uint8_t *from, size_t bytes, void *cookie);
    /* Change memory of this process; what was there before. */
    uint64_t (*change)(const rustbtl_btl_atomic_t *atomic);
    /* What a peer executes itself. Unless it is down the operation is over later, and other
     * processes see then what was written. */
    int32_t (*ask_read)(rustbtl_btl_t *btl, const rustbtl_btl_peer_t *of, uint64_t from,
                        uint8_t *into, size_t bytes, void *cookie);
    int32_t (*ask_write)(rustbtl_btl_t *btl, const rustbtl_btl_peer_t *of, uint64_t to,
                         const uint8_t *from, size_t bytes, void *cookie);
    /* What was there before goes to `into`, in 4 or 8 bytes, if that is not NULL. */
    int32_t (*ask_change)(rustbtl_btl_t *btl, const rustbtl_btl_peer_t *of,
                          const rustbtl_btl_atomic_t *atomic, uint8_t *into, void *cookie);
    int32_t (*progress)(rustbtl_btl_t *btl);
    /* Say goodbye, and forget all of it. */
    void (*close)(rustbtl_btl_t *btl);
} rustbtl_btl_functions_t;

#endif
