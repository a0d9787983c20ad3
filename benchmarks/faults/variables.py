"""Environment variables by which a life tells its processes where to announce and to note."""

SOCKET, NOTES, LIFE, STACK = "FAULTS_SOCKET", "FAULTS_NOTES", "FAULTS_LIFE", "FAULTS_STACK"
