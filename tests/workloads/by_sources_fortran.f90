! As by_sources.cpp: rank 1 reads a clock of Fortran's or draws random numbers in each round.
! usage: by_sources_fortran ITERATIONS GATE (see gate.h)
!        by_sources_fortran ITERATIONS FOLDER killed
program by_sources_fortran
  use mpi
  implicit none
  integer, parameter :: sources = 4, rounds_after = 100, look_each = 10, to_failure = 3 * sources
  character(len=13), parameter :: names(sources) = &
       [ 'system_clock ', 'date_and_time', 'cpu_time     ', 'random_seed  ' ]
  integer(8) :: got, hashes(sources), first(sources), ticks
  integer :: me, ierr, i, k, left, limit, iterations, values(8), wrong
  character(len=32) :: text
  character(len=1024) :: gate, failed
  logical :: killed
  real(8) :: seconds
  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, me, ierr)
  call get_command_argument(1, text)
  read (text, *) iterations
  call get_command_argument(2, gate)
  call get_command_argument(3, text)
  killed = text == 'killed'
  if (killed) then
    failed = trim(gate) // '/failed'
    gate = trim(gate) // '/checkpoint'
  end if
  hashes = 1
  left = -1
  limit = 0
  i = 0
  do while (left /= 0)
    k = mod(i, sources) + 1
    got = 0
    if (me == 1) then
      select case (k)
      case (1)
        call system_clock(ticks)
        got = ticks
      case (2)
        call date_and_time(values=values)
        got = values(8) + 1000_8 * (values(7) + 60_8 * (values(6) + 60_8 * values(5)))
      case (3)
        call cpu_time(seconds)
        got = int(seconds * 1e6, 8)
      case (4)
        call random_seed()
        call random_number(seconds)
        got = int(seconds * 1e9, 8)
      end select
    end if
    call MPI_Bcast(got, 1, MPI_INTEGER8, 1, MPI_COMM_WORLD, ierr)
    hashes(k) = ieor(ishftc(hashes(k), 13), got)
    if (left < 0 .and. mod(i, look_each) == 0) then
      call look_at_gate()
      if (limit >= iterations) left = rounds_after + merge(to_failure, 0, killed)
    end if
    if (killed .and. left == rounds_after .and. me == 1) call fail_once()
    if (left > 0) left = left - 1
    i = i + 1
    call wait_a_little()
  end do
  first = hashes
  call MPI_Bcast(first, sources, MPI_INTEGER8, 1, MPI_COMM_WORLD, ierr)
  wrong = 0
  do k = 1, sources
    if (first(k) /= hashes(k)) then
      write (0, '(a,i0,2a)') 'rank ', me, ': rank 1 got something else from ', names(k)
      wrong = wrong + 1
    end if
  end do
  call MPI_Allreduce(MPI_IN_PLACE, wrong, 1, MPI_INTEGER, MPI_MAX, MPI_COMM_WORLD, ierr)
  if (me == 0 .and. wrong > 0) then
    write (*, '(2(a,i0),a)') 'HASH contradicts itself in ', wrong, ' of ', sources, ' sources'
  else if (me == 0) then
    write (*, '(a)') 'HASH consistent'
  end if
  call MPI_Finalize(ierr)

contains

  subroutine look_at_gate()
    integer :: unit, ios
    limit = 0
    if (me == 0) then
      open (newunit=unit, file=trim(gate), status='old', action='read', iostat=ios)
      if (ios == 0) then
        read (unit, *, iostat=ios) limit
        close (unit)
      end if
    end if
    call MPI_Bcast(limit, 1, MPI_INTEGER, 0, MPI_COMM_WORLD, ierr)
  end subroutine look_at_gate

  ! A restored process has failed once. By the kernel's call mkdir (83): what is made by the C
  ! library's is gone after a rollback.
  subroutine fail_once()
    use iso_c_binding
    interface
      function syscall(number, path, mode) bind(c)
        import :: c_char, c_long
        integer(c_long), value :: number, mode
        character(kind=c_char), intent(in) :: path(*)
        integer(c_long) :: syscall
      end function syscall
      function raise(number) bind(c)
        import :: c_int
        integer(c_int), value :: number
        integer(c_int) :: raise
      end function raise
    end interface
    integer(c_int) :: ignored
    if (syscall(83_c_long, trim(failed) // c_null_char, 448_c_long) == 0) ignored = raise(9_c_int)
  end subroutine fail_once

  subroutine wait_a_little()
    use iso_c_binding
    interface
      function usleep(us) bind(c)
        import :: c_int
        integer(c_int), value :: us
        integer(c_int) :: usleep
      end function usleep
    end interface
    integer(c_int) :: ignored
    ignored = usleep(500_c_int)
  end subroutine wait_a_little
end program by_sources_fortran
