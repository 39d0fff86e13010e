/* Threads of OpenMP that compute; the sum depends on every step. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 400 };
static double a[N][N], b[N][N];

int main(void)
{
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) a[i][j] = sin(i * 0.1) + cos(j * 0.2);
    printf("ready\n");
    fflush(stdout);
    const char *given = getenv("STEPS");
    const int steps = NULL == given ? 2500 : atoi(given);
    for (int step = 0; step < steps; step++) {
#pragma omp parallel for
        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++)
                b[i][j] = 0.25 * (a[(i + 1) % N][j] + a[(i + N - 1) % N][j] + a[i][(j + 1) % N]
                                  + a[i][(j + N - 1) % N]);
#pragma omp parallel for
        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++) a[i][j] = b[i][j] + 1e-6 * sin(step + i);
    }
    double sum = 0;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) sum += a[i][j];
    printf("%a\n", sum);
    return 0;
}
