/* The restorer: makes remote system calls, inside a process that is being restored.
 *
 * It executes the system calls that it receives (`struct order` over a socket of packets) until it
 * receives the order to become the leader thread of the restored process. It knows nothing of
 * images: all decisions are in checkpoint/process/src/restore. It has no libc, no thread-local
 * storage, no constant address, and keeps to general registers, because the processor's other state
 * belongs to the threads that it starts. The restored process unmaps it.
 *
 * The structs are mirrored, with their sizes, by checkpoint/process/src/restore/restorer.rs
 * (struct thread: threads.rs).
 */
typedef unsigned long word;

enum { CALL_READ = 0, CALL_WRITE = 1, CALL_EXIT_GROUP = 231, CALL_CLONE3 = 435 };
enum { ORDER_RUN = 1, ORDER_SPAWN = 2, ORDER_BECOME = 3 };
enum { FLAG_MAY_FAIL = 1 };
enum { CALLS_MAX = 120, STACK_BYTES = 32768 };

struct call {
    word number, arguments[6], flags;
};

/* A thread as it is in its first moments. */
struct thread {
    word stack, entry, argument, large_state, calls;
    struct call call[];
};

struct order {
    word kind, calls;
    struct call call[CALLS_MAX];
};

struct answer {
    word done; /* calls that were made, the last one included */
    long result; /* of the last one */
};

_Static_assert(sizeof(struct call) == 64, "as in restorer.rs");
_Static_assert(sizeof(struct thread) == 40, "as in threads.rs");
_Static_assert(sizeof(struct order) == 16 + 64 * CALLS_MAX, "as in restorer.rs");

static struct order order;
static unsigned char own_stack[STACK_BYTES] __attribute__((aligned(64), used));

static long system_call(const struct call *call)
{
    const word *a = call->arguments;
    register word r10 __asm__("r10") = a[3];
    register word r8 __asm__("r8") = a[4];
    register word r9 __asm__("r9") = a[5];
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(call->number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8),
                       "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static long simple(word number, word a, word b, word c)
{
    struct call call = {number, {a, b, c, 0, 0, 0}, 0};
    return system_call(&call);
}

static _Noreturn void end(word code)
{
    for (;;)
        simple(CALL_EXIT_GROUP, code, 0, 0);
}

static int failed(const struct call *call, long result)
{
    return result < 0 && result > -4096 && !(call->flags & FLAG_MAY_FAIL);
}

static struct answer run(const struct call *call, word calls)
{
    struct answer answer = {0, 0};
    while (answer.done < calls) {
        const struct call *next = call + answer.done;
        answer.result = system_call(next);
        answer.done++;
        if (failed(next, answer.result))
            break;
    }
    return answer;
}

/* Runs on the thread's own stack, below everything that it still needs. */
__attribute__((used)) static _Noreturn void thread_main(const struct thread *thread)
{
    struct answer answer = run(thread->call, thread->calls);
    if (answer.done && failed(thread->call + answer.done - 1, answer.result))
        end(114);
    if (thread->large_state) {
        /* ldtilecfg of a valid configuration (palette 1, one tile of one row), tilezero,
         * tilerelease: afterwards the kernel keeps the large state of this thread, and
         * rt_sigreturn accepts the frame that was saved with it. */
        static const unsigned char configuration[64] __attribute__((aligned(64))) = {
            [0] = 1, [16] = 64, [48] = 1};
        __asm__ volatile(".byte 0xc4, 0xe2, 0x78, 0x49, 0x00\n\t" /* ldtilecfg (%rax) */
                         ".byte 0xc4, 0xe2, 0x7b, 0x49, 0xc0\n\t" /* tilezero %tmm0 */
                         ".byte 0xc4, 0xe2, 0x78, 0x49, 0xc0" /* tilerelease */
                         :
                         : "a"(configuration)
                         : "memory");
    }
    __asm__ volatile("mov %0, %%rsp\n\t"
                     "xor %%ebp, %%ebp\n\t"
                     "jmp *%1"
                     :
                     : "r"(thread->stack), "r"(thread->entry), "D"(thread->argument)
                     : "memory");
    __builtin_unreachable();
}

/* The new thread begins on the stack that is named in `arguments` of clone3(2). */
static long spawn(const struct call *call)
{
    register const struct thread *thread __asm__("r12") = (void *)call->arguments[2];
    long result;
    __asm__ volatile("syscall\n\t"
                     "test %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "xor %%ebp, %%ebp\n\t"
                     "mov %%r12, %%rdi\n\t"
                     "and $-16, %%rsp\n\t"
                     "call thread_main\n\t"
                     "1:"
                     : "=a"(result)
                     : "a"((word)CALL_CLONE3), "D"(call->arguments[0]), "S"(call->arguments[1]),
                       "r"(thread)
                     : "rcx", "r11", "memory");
    return result;
}

static _Noreturn void become(const struct thread *thread)
{
    __asm__ volatile("mov %0, %%rsp\n\t"
                     "and $-16, %%rsp\n\t"
                     "call thread_main"
                     :
                     : "r"(thread->stack), "D"(thread)
                     : "memory");
    __builtin_unreachable();
}

/* `socket`: a decimal number, the only argument of the program. */
__attribute__((used)) static _Noreturn void serve(const char *socket)
{
    word fd = 0;
    while (*socket >= '0' && *socket <= '9')
        fd = fd * 10 + (word)(*socket++ - '0');
    for (;;) {
        struct answer answer = {1, 0};
        long got = simple(CALL_READ, fd, (word)&order, sizeof order);
        if (got < 16 || order.calls > CALLS_MAX || (word)got != 16 + 64 * order.calls)
            end(113);
        if (order.kind == ORDER_RUN)
            answer = run(order.call, order.calls);
        else if (order.kind == ORDER_SPAWN && order.calls == 1)
            answer.result = spawn(order.call);
        else if (order.kind == ORDER_BECOME && order.calls == 1)
            become((const struct thread *)order.call[0].arguments[0]);
        else
            end(115);
        if (simple(CALL_WRITE, fd, (word)&answer, sizeof answer) != sizeof answer)
            end(113);
    }
}

/* argc at (%rsp), argv[0] behind it; then on to our own stack: the kernel's will be unmapped. */
__asm__(".globl restorer_start\n"
        "restorer_start:\n\t"
        "xor %ebp, %ebp\n\t"
        "mov 8(%rsp), %rdi\n\t"
        "lea own_stack+32768(%rip), %rsp\n\t"
        "call serve\n\t"
        "ud2\n");
