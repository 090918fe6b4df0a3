/* Preloaded into a server, it makes each fdatasync take DIBS_FDATASYNC_US microseconds
 * more: a disk that is slower to sync and no slower to read or write. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <time.h>

int fdatasync(int fd) {
	static int (*real)(int);
	static long more;
	if (real == NULL) {
		const char *us = getenv("DIBS_FDATASYNC_US");
		more = us != NULL ? atol(us) : 0;
		real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
	}
	struct timespec left = {more / 1000000, more % 1000000 * 1000};
	while (nanosleep(&left, &left) != 0 && errno == EINTR)
		;
	return real(fd);
}
