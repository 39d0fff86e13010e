/*
 * Put, get, accumulates: MPI's types become bytes and rows of bytes for Rust.
 *
 * Data is packed where it is not one piece. What is fetched goes to memory directly, or through a
 * convertor that lives as long as the operation; a request is such an operation that the program
 * waits for.
 */
#include "vprotocol_correlated_onesided.h"

#include <stdlib.h>

#include "ompi/op/op.h"

/* ---- types --------------------------------------------------------------------------------- */

typedef struct {
    ompi_datatype_t *type;
    uint32_t primitive;
} known_t;

typedef struct {
    struct ompi_op_t *op;
    uint32_t number;
} known_op_t;

/* By the index that Open MPI gives each of them for Fortran. Filled in before there are windows. */
enum { TYPES = 128, OPS = 32 };
static known_t types[TYPES];
static known_op_t ops[OPS];

/* MPI defines no arithmetic for bytes and characters, nor for some types of Fortran and C++; Open
 * MPI has it: as the integers that they are. */
void mca_osc_correlated_types(void)
{
    const known_t known[] = {
        { MPI_BYTE, RUSTBTL_U8 },
        { MPI_CHAR, RUSTBTL_I8 },
        { MPI_PACKED, RUSTBTL_BYTE },
        { MPI_CHARACTER, RUSTBTL_U8 },
        { MPI_INT, RUSTBTL_I32 },
        { MPI_DOUBLE, RUSTBTL_F64 },
        { MPI_LONG, RUSTBTL_I64 },
        { MPI_UNSIGNED_LONG, RUSTBTL_U64 },
        { MPI_FLOAT, RUSTBTL_F32 },
        { MPI_UNSIGNED, RUSTBTL_U32 },
        { MPI_INT64_T, RUSTBTL_I64 },
        { MPI_UINT64_T, RUSTBTL_U64 },
        { MPI_INT32_T, RUSTBTL_I32 },
        { MPI_UINT32_T, RUSTBTL_U32 },
        { MPI_LONG_LONG_INT, RUSTBTL_I64 },
        { MPI_UNSIGNED_LONG_LONG, RUSTBTL_U64 },
        { MPI_AINT, RUSTBTL_I64 },
        { MPI_OFFSET, RUSTBTL_I64 },
        { MPI_COUNT, RUSTBTL_I64 },
        { MPI_SHORT, RUSTBTL_I16 },
        { MPI_UNSIGNED_SHORT, RUSTBTL_U16 },
        { MPI_INT16_T, RUSTBTL_I16 },
        { MPI_UINT16_T, RUSTBTL_U16 },
        { MPI_SIGNED_CHAR, RUSTBTL_I8 },
        { MPI_UNSIGNED_CHAR, RUSTBTL_U8 },
        { MPI_INT8_T, RUSTBTL_I8 },
        { MPI_UINT8_T, RUSTBTL_U8 },
        { MPI_WCHAR, RUSTBTL_I32 },
        { MPI_C_BOOL, RUSTBTL_BOOL },
        { MPI_CXX_BOOL, RUSTBTL_BOOL },
        { MPI_LONG_DOUBLE, RUSTBTL_LONG_DOUBLE },
        { MPI_C_FLOAT_COMPLEX, RUSTBTL_C32 },
        { MPI_C_DOUBLE_COMPLEX, RUSTBTL_C64 },
        { MPI_C_LONG_DOUBLE_COMPLEX, RUSTBTL_C_LONG_DOUBLE },
        { MPI_FLOAT_INT, RUSTBTL_FLOAT_INT },
        { MPI_DOUBLE_INT, RUSTBTL_DOUBLE_INT },
        { MPI_LONG_INT, RUSTBTL_LONG_INT },
        { MPI_2INT, RUSTBTL_TWO_INT },
        { MPI_SHORT_INT, RUSTBTL_SHORT_INT },
        { MPI_LONG_DOUBLE_INT, RUSTBTL_LONG_DOUBLE_INT },
        { MPI_INTEGER, RUSTBTL_I32 },
        { MPI_REAL, RUSTBTL_F32 },
        { MPI_DOUBLE_PRECISION, RUSTBTL_F64 },
        { MPI_LOGICAL, RUSTBTL_LOGICAL },
        { MPI_COMPLEX, RUSTBTL_C32 },
        { MPI_DOUBLE_COMPLEX, RUSTBTL_C64 },
        { MPI_2INTEGER, RUSTBTL_TWO_INT },
        { MPI_2REAL, RUSTBTL_TWO_REAL },
        { MPI_2DOUBLE_PRECISION, RUSTBTL_TWO_DOUBLE },
        /* Without a Fortran compiler, Open MPI has none of these with a size. */
#ifdef MPI_INTEGER1
        { MPI_INTEGER1, RUSTBTL_I8 },
#endif
#ifdef MPI_INTEGER2
        { MPI_INTEGER2, RUSTBTL_I16 },
#endif
#ifdef MPI_INTEGER4
        { MPI_INTEGER4, RUSTBTL_I32 },
#endif
#ifdef MPI_INTEGER8
        { MPI_INTEGER8, RUSTBTL_I64 },
#endif
#ifdef MPI_REAL4
        { MPI_REAL4, RUSTBTL_F32 },
#endif
#ifdef MPI_REAL8
        { MPI_REAL8, RUSTBTL_F64 },
#endif
#ifdef MPI_COMPLEX8
        { MPI_COMPLEX8, RUSTBTL_C32 },
#endif
#ifdef MPI_COMPLEX16
        { MPI_COMPLEX16, RUSTBTL_C64 },
#endif
        { MPI_C_COMPLEX, RUSTBTL_C32 },
        { MPI_CXX_COMPLEX, RUSTBTL_C32 },
        { MPI_CXX_FLOAT_COMPLEX, RUSTBTL_C32 },
        { MPI_CXX_DOUBLE_COMPLEX, RUSTBTL_C64 },
        { MPI_CXX_LONG_DOUBLE_COMPLEX, RUSTBTL_C_LONG_DOUBLE },
#ifdef MPI_LOGICAL1
        { MPI_LOGICAL1, RUSTBTL_I8 },
#endif
#ifdef MPI_LOGICAL2
        { MPI_LOGICAL2, RUSTBTL_I16 },
#endif
#ifdef MPI_LOGICAL4
        { MPI_LOGICAL4, RUSTBTL_LOGICAL },
#endif
#ifdef MPI_LOGICAL8
        { MPI_LOGICAL8, RUSTBTL_I64 },
#endif
    };
    const known_op_t known_ops[] = {
        { MPI_SUM, RUSTBTL_OP_SUM },       { MPI_REPLACE, RUSTBTL_OP_REPLACE },
        { MPI_NO_OP, RUSTBTL_OP_NO_OP },   { MPI_MAX, RUSTBTL_OP_MAX },
        { MPI_MIN, RUSTBTL_OP_MIN },       { MPI_PROD, RUSTBTL_OP_PROD },
        { MPI_LAND, RUSTBTL_OP_LAND },     { MPI_LOR, RUSTBTL_OP_LOR },
        { MPI_LXOR, RUSTBTL_OP_LXOR },     { MPI_BAND, RUSTBTL_OP_BAND },
        { MPI_BOR, RUSTBTL_OP_BOR },       { MPI_BXOR, RUSTBTL_OP_BXOR },
        { MPI_MINLOC, RUSTBTL_OP_MINLOC }, { MPI_MAXLOC, RUSTBTL_OP_MAXLOC },
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        int index = known[i].type->d_f_to_c_index;
        /* Where two are one, the first counts. */
        if (0 <= index && index < TYPES && NULL == types[index].type) {
            types[index] = known[i];
        }
    }
    for (size_t i = 0; i < sizeof(known_ops) / sizeof(known_ops[0]); i++) {
        int index = known_ops[i].op->o_f_to_c_index;
        if (0 <= index && index < OPS) {
            ops[index] = known_ops[i];
        }
    }
}

uint32_t mca_osc_correlated_primitive(ompi_datatype_t *type)
{
    int index = type->d_f_to_c_index;
    bool is_known = 0 <= index && index < TYPES && types[index].type == type;
    return is_known ? types[index].primitive : RUSTBTL_NO_PRIMITIVE;
}

static uint32_t op_of(struct ompi_op_t *op)
{
    int index = op->o_f_to_c_index;
    return 0 <= index && index < OPS && ops[index].op == op ? ops[index].number : 0;
}

/* Rows of one element, in its order. NULL: no memory. */
static rustbtl_row_t *rows_of(ompi_datatype_t *type, uint64_t *count)
{
    enum { PIECES = 64 };
    opal_convertor_t convertor;
    struct iovec pieces[PIECES];
    size_t room = 0, used = 0;
    rustbtl_row_t *rows = NULL;
    int done = 0;

    OBJ_CONSTRUCT(&convertor, opal_convertor_t);
    /* From address 0: what comes out are offsets. */
    (void) opal_convertor_copy_and_prepare_for_send(ompi_mpi_local_convertor, &type->super, 1, NULL,
                                                    0, &convertor);
    while (!done) {
        uint32_t some = PIECES;
        size_t bytes = SIZE_MAX;
        done = opal_convertor_raw(&convertor, pieces, &some, &bytes);
        if (used + some > room || NULL == rows) {
            room = 2 * (used + some) + 1;
            rustbtl_row_t *more = realloc(rows, room * sizeof(*rows));
            if (NULL == more) {
                free(rows);
                rows = NULL;
                break;
            }
            rows = more;
        }
        for (uint32_t i = 0; i < some; i++) {
            rows[used].at = (int64_t) (intptr_t) pieces[i].iov_base;
            rows[used].bytes = pieces[i].iov_len;
            used++;
        }
    }
    opal_convertor_cleanup(&convertor);
    OBJ_DESTRUCT(&convertor);
    *count = used;
    return rows;
}

/* Where in the target's memory. `combined`: its elements are, so the primitive matters, unless they
 * are only moved. What it takes of memory is for the caller to free. */
static int describe(rustbtl_access_t *access, int count, ompi_datatype_t *type, bool combined,
                    rustbtl_row_t **rows)
{
    uint32_t primitive = mca_osc_correlated_primitive(type);
    *rows = NULL;
    access->rows = NULL;
    access->extent = 0;
    if (RUSTBTL_NO_PRIMITIVE != primitive) {
        access->primitive = primitive;
        access->count = (uint64_t) count;
        return OMPI_SUCCESS;
    }
    access->primitive = RUSTBTL_BYTE;
    if (combined) {
        ompi_datatype_t *single = ompi_datatype_get_single_predefined_type_from_args(type);
        bool moves = RUSTBTL_OP_REPLACE == access->op || RUSTBTL_OP_NO_OP == access->op;
        if (NULL == single) {
            return MPI_ERR_TYPE;
        }
        access->primitive = mca_osc_correlated_primitive(single);
        if (RUSTBTL_NO_PRIMITIVE == access->primitive) {
            if (!moves) {
                return MPI_ERR_TYPE;
            }
            access->primitive = RUSTBTL_BYTE;
        }
    } else if (correlated_contiguous(type, (size_t) count) && 0 == type->super.true_lb) {
        access->count = type->super.size * (uint64_t) count;
        return OMPI_SUCCESS;
    }
    *rows = rows_of(type, &access->row_count);
    if (NULL == *rows) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    access->rows = *rows;
    access->count = (uint64_t) count;
    access->extent = type->super.ub - type->super.lb;
    return OMPI_SUCCESS;
}

/* The origin's data in one piece; what it takes of memory is for the caller to free. */
static int pack_origin(rustbtl_access_t *access, const void *origin, int count,
                       ompi_datatype_t *type, void **packed)
{
    opal_convertor_t convertor;
    *packed = NULL;
    access->bytes = type->super.size * (uint64_t) count;
    if (correlated_contiguous(type, (size_t) count)) {
        access->data = (const uint8_t *) origin + type->super.true_lb;
        return OMPI_SUCCESS;
    }
    *packed = malloc(access->bytes);
    if (NULL == *packed) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    OBJ_CONSTRUCT(&convertor, opal_convertor_t);
    int rc = opal_convertor_copy_and_prepare_for_send(ompi_mpi_local_convertor, &type->super,
                                                      (size_t) count, origin, 0, &convertor);
    if (OMPI_SUCCESS == rc) {
        rustbtl_glue_pack(&convertor, 0, *packed, access->bytes);
    }
    opal_convertor_cleanup(&convertor);
    OBJ_DESTRUCT(&convertor);
    access->data = *packed;
    return rc;
}

/* ---- what is fetched ----------------------------------------------------------------------- */

typedef struct {
    ompi_request_t ompi;
    rustbtl_operation_t op;
    opal_convertor_t convertor;
    ompi_datatype_t *type; /* retained, with the convertor; or NULL */
    bool has_request;
} mca_osc_correlated_fetch_t;

static int fetch_free(ompi_request_t **request)
{
    OMPI_REQUEST_FINI(*request);
    OBJ_RELEASE(*request);
    *request = MPI_REQUEST_NULL;
    return OMPI_SUCCESS;
}

static int fetch_cancel(ompi_request_t *request, int flag)
{
    (void) request;
    (void) flag;
    return MPI_ERR_REQUEST;
}

static void fetch_construct(mca_osc_correlated_fetch_t *fetch)
{
    fetch->ompi.req_type = OMPI_REQUEST_WIN;
    fetch->ompi.req_free = fetch_free;
    fetch->ompi.req_cancel = fetch_cancel;
    fetch->type = NULL;
    fetch->has_request = false;
    OBJ_CONSTRUCT(&fetch->convertor, opal_convertor_t);
}

static void fetch_destruct(mca_osc_correlated_fetch_t *fetch)
{
    if (NULL != fetch->type) {
        opal_convertor_cleanup(&fetch->convertor);
        OMPI_DATATYPE_RELEASE_NO_NULLIFY(fetch->type);
    }
    OBJ_DESTRUCT(&fetch->convertor);
}

static OBJ_CLASS_INSTANCE(mca_osc_correlated_fetch_t, ompi_request_t, fetch_construct,
                          fetch_destruct);

/* The engine has one reference, the program's request another one. */
void mca_osc_correlated_fetched(rustbtl_operation_t *op)
{
    mca_osc_correlated_fetch_t *fetch
        = (mca_osc_correlated_fetch_t *) ((char *) op - offsetof(mca_osc_correlated_fetch_t, op));
    if (fetch->has_request) {
        fetch->ompi.req_status.MPI_ERROR = mca_osc_correlated_error((int32_t) op->outcome);
        ompi_request_complete(&fetch->ompi, true);
    }
    OBJ_RELEASE(fetch);
}

static mca_osc_correlated_fetch_t *fetch_new(void *buffer, int count, ompi_datatype_t *type,
                                             struct ompi_win_t *win, ompi_request_t **request)
{
    mca_osc_correlated_fetch_t *fetch = OBJ_NEW(mca_osc_correlated_fetch_t);
    if (NULL == fetch) {
        return NULL;
    }
    correlated_operation(&fetch->op, RUSTBTL_FETCHES, buffer, (size_t) count, type);
    if (!correlated_contiguous(type, (size_t) count)) {
        OMPI_DATATYPE_RETAIN(type);
        fetch->type = type;
        (void) opal_convertor_copy_and_prepare_for_recv(ompi_mpi_local_convertor, &type->super,
                                                        (size_t) count, buffer, 0,
                                                        &fetch->convertor);
        fetch->op.convertor = &fetch->convertor;
    }
    if (NULL != request) {
        OMPI_REQUEST_INIT(&fetch->ompi, false);
        fetch->ompi.req_state = OMPI_REQUEST_ACTIVE;
        fetch->ompi.req_mpi_object.win = win;
        fetch->ompi.req_status.MPI_SOURCE = MPI_UNDEFINED;
        fetch->ompi.req_status.MPI_TAG = MPI_UNDEFINED;
        fetch->ompi.req_status.MPI_ERROR = MPI_SUCCESS;
        fetch->ompi.req_status._ucount = fetch->op.bytes;
        fetch->ompi.req_status._cancelled = 0;
        fetch->has_request = true;
        OBJ_RETAIN(fetch);
        *request = &fetch->ompi;
    }
    return fetch;
}

/* ---- functions of the module --------------------------------------------------------------- */

typedef struct {
    const void *origin; /* NULL: nothing is sent */
    int origin_count;
    ompi_datatype_t *origin_type;
    void *result; /* NULL with `fetches` false */
    int result_count;
    ompi_datatype_t *result_type;
    bool fetches;
    int target;
    ptrdiff_t at;
    int target_count;
    ompi_datatype_t *target_type;
    struct ompi_op_t *op;
    uint32_t kind;
} call_t;

static int do_access(const call_t *call, struct ompi_win_t *win, ompi_request_t **request)
{
    rustbtl_access_t access = { 0 };
    rustbtl_operation_t plain;
    rustbtl_row_t *rows = NULL;
    void *packed = NULL;
    mca_osc_correlated_fetch_t *fetch = NULL;
    bool combined = RUSTBTL_ACCUMULATE == call->kind || RUSTBTL_GET_ACCUMULATE == call->kind;

    access.window = correlated_window(win)->window;
    access.target = (uint32_t) call->target;
    access.displacement = call->at;
    access.kind = call->kind;
    access.op = combined ? op_of(call->op) : 0;
    int rc = describe(&access, call->target_count, call->target_type, combined, &rows);
    if (OMPI_SUCCESS == rc && RUSTBTL_GET != call->kind
        && RUSTBTL_OP_NO_OP != access.op) {
        rc = pack_origin(&access, call->origin, call->origin_count, call->origin_type, &packed);
    }
    if (OMPI_SUCCESS == rc && call->fetches) {
        if (NULL == request
            && correlated_contiguous(call->result_type, (size_t) call->result_count)) {
            correlated_operation(&plain, RUSTBTL_ON_STACK, call->result,
                                 (size_t) call->result_count, call->result_type);
            access.result = &plain;
        } else {
            fetch = fetch_new(call->result, call->result_count, call->result_type, win, request);
            if (NULL == fetch) {
                rc = OMPI_ERR_OUT_OF_RESOURCE;
            } else {
                access.result = &fetch->op;
            }
        }
    }
    if (OMPI_SUCCESS == rc) {
        rc = mca_osc_correlated_error(rustbtl_window_access(&access));
        if (OMPI_SUCCESS != rc && NULL != fetch) {
            if (NULL != request) {
                (void) fetch_free(request);
            }
            OBJ_RELEASE(fetch);
        }
    }
    free(rows);
    free(packed);
    if (OMPI_SUCCESS == rc && NULL != request && !call->fetches) {
        *request = &ompi_request_empty; /* it was copied */
    }
    return rc;
}

/* Elements of one predefined type in a row, at the origin as at the target; nobody waits by a
 * request. `result` NULL: nothing is fetched. -1: it is something else. */
static inline int32_t access_row(uint32_t kind, struct ompi_op_t *op, const void *origin,
                                 int count, ompi_datatype_t *type, void *result, int target,
                                 ptrdiff_t at, int target_count, ompi_datatype_t *target_type,
                                 struct ompi_win_t *win)
{
    if (OPAL_UNLIKELY(type != target_type || count != target_count || count <= 0)) {
        return -1;
    }
    uint32_t primitive = mca_osc_correlated_primitive(type);
    uint32_t number = NULL == op ? 0 : op_of(op);
    /* (Pairs may have padding, which is no data.) */
    if (OPAL_UNLIKELY(RUSTBTL_NO_PRIMITIVE == primitive || RUSTBTL_OP_NO_OP == number
                      || !correlated_contiguous(type, (size_t) count))) {
        return -1;
    }
    return rustbtl_window_access_row(correlated_window(win)->window, (uint32_t) target, at,
                                     kind | number << 8 | primitive << 16, (uint64_t) count,
                                     origin, result);
}

static int rput(const void *origin, int count, struct ompi_datatype_t *type, int target,
                ptrdiff_t at, int target_count, struct ompi_datatype_t *target_type,
                struct ompi_win_t *win, struct ompi_request_t **request)
{
    const call_t call = { .origin = origin, .origin_count = count, .origin_type = type,
                          .target = target, .at = at, .target_count = target_count,
                          .target_type = target_type, .kind = RUSTBTL_PUT };
    return do_access(&call, win, request);
}

static int put(const void *origin, int count, struct ompi_datatype_t *type, int target,
               ptrdiff_t at, int target_count, struct ompi_datatype_t *target_type,
               struct ompi_win_t *win)
{
    int32_t outcome = access_row(RUSTBTL_PUT, NULL, origin, count, type, NULL, target, at,
                                 target_count, target_type, win);
    if (OPAL_LIKELY(outcome >= 0)) {
        return mca_osc_correlated_error(outcome);
    }
    return rput(origin, count, type, target, at, target_count, target_type, win, NULL);
}

static int rget(void *origin, int count, struct ompi_datatype_t *type, int target, ptrdiff_t at,
                int target_count, struct ompi_datatype_t *target_type, struct ompi_win_t *win,
                struct ompi_request_t **request)
{
    const call_t call = { .result = origin, .result_count = count, .result_type = type,
                          .fetches = true, .target = target, .at = at,
                          .target_count = target_count, .target_type = target_type,
                          .kind = RUSTBTL_GET };
    return do_access(&call, win, request);
}

static int get(void *origin, int count, struct ompi_datatype_t *type, int target, ptrdiff_t at,
               int target_count, struct ompi_datatype_t *target_type, struct ompi_win_t *win)
{
    int32_t outcome = access_row(RUSTBTL_GET, NULL, NULL, count, type, origin, target, at,
                                 target_count, target_type, win);
    if (OPAL_LIKELY(outcome >= 0)) {
        return mca_osc_correlated_error(outcome);
    }
    return rget(origin, count, type, target, at, target_count, target_type, win, NULL);
}

static int raccumulate(const void *origin, int count, struct ompi_datatype_t *type, int target,
                       ptrdiff_t at, int target_count, struct ompi_datatype_t *target_type,
                       struct ompi_op_t *op, struct ompi_win_t *win,
                       struct ompi_request_t **request)
{
    const call_t call = { .origin = origin, .origin_count = count, .origin_type = type,
                          .target = target, .at = at, .target_count = target_count,
                          .target_type = target_type, .op = op, .kind = RUSTBTL_ACCUMULATE };
    return do_access(&call, win, request);
}

static int accumulate(const void *origin, int count, struct ompi_datatype_t *type, int target,
                      ptrdiff_t at, int target_count, struct ompi_datatype_t *target_type,
                      struct ompi_op_t *op, struct ompi_win_t *win)
{
    int32_t outcome = access_row(RUSTBTL_ACCUMULATE, op, origin, count, type, NULL, target, at,
                                 target_count, target_type, win);
    if (OPAL_LIKELY(outcome >= 0)) {
        return mca_osc_correlated_error(outcome);
    }
    return raccumulate(origin, count, type, target, at, target_count, target_type, op, win, NULL);
}

static int rget_accumulate(const void *origin, int count, struct ompi_datatype_t *type,
                           void *result, int result_count, struct ompi_datatype_t *result_type,
                           int target, ptrdiff_t at, int target_count,
                           struct ompi_datatype_t *target_type, struct ompi_op_t *op,
                           struct ompi_win_t *win, struct ompi_request_t **request)
{
    const call_t call = { .origin = origin, .origin_count = count, .origin_type = type,
                          .result = result, .result_count = result_count,
                          .result_type = result_type, .fetches = true, .target = target, .at = at,
                          .target_count = target_count, .target_type = target_type, .op = op,
                          .kind = RUSTBTL_GET_ACCUMULATE };
    return do_access(&call, win, request);
}

static int get_accumulate(const void *origin, int count, struct ompi_datatype_t *type, void *result,
                          int result_count, struct ompi_datatype_t *result_type, int target,
                          ptrdiff_t at, int target_count, struct ompi_datatype_t *target_type,
                          struct ompi_op_t *op, struct ompi_win_t *win)
{
    int32_t outcome = -1;
    if (OPAL_LIKELY(result_type == type && result_count == count)) {
        outcome = access_row(RUSTBTL_GET_ACCUMULATE, op, origin, count, type, result, target, at,
                             target_count, target_type, win);
    }
    if (OPAL_LIKELY(outcome >= 0)) {
        return mca_osc_correlated_error(outcome);
    }
    return rget_accumulate(origin, count, type, result, result_count, result_type, target, at,
                           target_count, target_type, op, win, NULL);
}

static int fetch_and_op(const void *origin, void *result, struct ompi_datatype_t *type, int target,
                        ptrdiff_t at, struct ompi_op_t *op, struct ompi_win_t *win)
{
    return get_accumulate(origin, 1, type, result, 1, type, target, at, 1, type, op, win);
}

static int compare_and_swap(const void *origin, const void *compare, void *result,
                            struct ompi_datatype_t *type, int target, ptrdiff_t at,
                            struct ompi_win_t *win)
{
    uint32_t primitive = mca_osc_correlated_primitive(type);
    if (RUSTBTL_NO_PRIMITIVE == primitive) {
        return MPI_ERR_TYPE;
    }
    return mca_osc_correlated_error(
        rustbtl_window_compare_and_swap(correlated_window(win)->window, (uint32_t) target, at,
                                        primitive, compare, origin, result));
}

void mca_osc_correlated_accesses(ompi_osc_base_module_t *module)
{
    module->osc_put = put;
    module->osc_get = get;
    module->osc_accumulate = accumulate;
    module->osc_compare_and_swap = compare_and_swap;
    module->osc_fetch_and_op = fetch_and_op;
    module->osc_get_accumulate = get_accumulate;
    module->osc_rput = rput;
    module->osc_rget = rget;
    module->osc_raccumulate = raccumulate;
    module->osc_rget_accumulate = rget_accumulate;
}
