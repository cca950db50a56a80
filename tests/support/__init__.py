"""What several groups of tests share: applications, servers, fixtures."""
