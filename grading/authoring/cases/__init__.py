"""Cases of hidden tests whose drawing has the answer in it, so that students do not get them."""
