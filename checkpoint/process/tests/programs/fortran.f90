! A Fortran program with units open for writing: the answer and the file depend on every step.
program steps
    implicit none
    integer :: i, j
    real(8) :: x(1000), sum
    open(unit=10, status='scratch', form='unformatted')
    x = 1.0d0
    print '(a)', 'ready'
    flush(6)
    do i = 1, 30000
        do j = 1, 1000
            x(j) = x(j) + sin(dble(i + j)) * 1d-3
        end do
        if (mod(i, 100) == 0) write(10) x(mod(i, 1000) + 1)
    end do
    rewind(10)
    sum = 0
    do i = 1, 300
        read(10) x(1)
        sum = sum + x(1)
    end do
    print '(a, es24.16)', 'sum', sum
end program
