/*
 * Memory that is not one piece: byte-exact packing and unpacking on top of opal's convertor.
 *
 * A send convertor only stops between basic elements (opal_convertor_set_position_nocheck); the
 * engine cuts messages anywhere. The element at each edge goes through a small buffer here.
 */
#include "vprotocol_correlated.h"

#include <string.h>

#include "opal/util/output.h"

/* More than one element of any basic type. */
#define EDGE_BYTES 64

/* Pack up to `bytes` from where the convertor is; how many came. */
static size_t pack_some(opal_convertor_t *convertor, uint8_t *into, size_t bytes)
{
    struct iovec piece = { .iov_base = into, .iov_len = bytes };
    uint32_t pieces = 1;
    size_t packed = bytes;
    (void) opal_convertor_pack(convertor, &piece, &pieces, &packed);
    return packed;
}

void rustbtl_glue_pack(void *handle, uint64_t offset, uint8_t *into, uint64_t bytes)
{
    opal_convertor_t *convertor = handle;
    uint8_t edge[EDGE_BYTES];

    while (0 < bytes) {
        size_t position = offset;
        (void) opal_convertor_set_position(convertor, &position);
        size_t skip = offset - position;
        if (0 == skip) {
            size_t packed = pack_some(convertor, into, bytes);
            if (0 < packed) {
                into += packed;
                offset += packed;
                bytes -= packed;
                continue;
            }
        }
        size_t packed = pack_some(convertor, edge, sizeof(edge));
        if (packed <= skip) {
            opal_output(0, "vprotocol correlated: opal_convertor_pack makes no progress at byte "
                        "%lu of %lu", (unsigned long) offset,
                        (unsigned long) convertor->local_size);
            rustbtl_glue_abort();
        }
        size_t use = packed - skip < bytes ? packed - skip : bytes;
        memcpy(into, edge + skip, use);
        into += use;
        offset += use;
        bytes -= use;
    }
}

void rustbtl_glue_unpack(void *handle, uint64_t offset, const uint8_t *from, uint64_t bytes)
{
    opal_convertor_t *convertor = handle;
    size_t position = offset;
    (void) opal_convertor_set_position(convertor, &position);
    while (0 < bytes) {
        struct iovec piece = { .iov_base = (void *) from, .iov_len = bytes };
        uint32_t pieces = 1;
        size_t unpacked = bytes;
        (void) opal_convertor_unpack(convertor, &piece, &pieces, &unpacked);
        if (0 == unpacked || position != offset) {
            opal_output(0, "vprotocol correlated: opal_convertor_unpack makes no progress at byte "
                        "%lu of %lu", (unsigned long) offset,
                        (unsigned long) convertor->local_size);
            rustbtl_glue_abort();
        }
        from += unpacked;
        bytes -= unpacked;
        offset += unpacked;
        position += unpacked;
    }
}
