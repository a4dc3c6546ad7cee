"""From lifetimes to offsets in one arena [TVM, XLA, MiniMalloc]."""
