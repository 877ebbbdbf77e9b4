/* The process that holds a pod's namespaces open: sleeps, reaps orphans (it is PID 1 of a pod that
 * shares its process namespace), and leaves at the first request. Built static, it is the whole
 * content of the sandbox image of the local clusters. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(int signo) {
  (void)signo;
  _exit(0);
}

static void reap(int signo) {
  (void)signo;
  while (waitpid(-1, NULL, WNOHANG) > 0) {
  }
}

int main(void) {
  struct sigaction on_leave, on_child;
  memset(&on_leave, 0, sizeof on_leave);
  memset(&on_child, 0, sizeof on_child);
  on_leave.sa_handler = leave;
  on_child.sa_handler = reap;
  on_child.sa_flags = SA_NOCLDSTOP;
  if (sigaction(SIGINT, &on_leave, NULL) || sigaction(SIGTERM, &on_leave, NULL) ||
      sigaction(SIGCHLD, &on_child, NULL)) {
    perror("sigaction");
    return 1;
  }
  for (;;) pause();
}
