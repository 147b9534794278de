"""Compiled code that analyses use: found or compiled when first needed, and never a must.

Each ``src/NAME.cpp`` is a library of its own with C functions, in C++ without its library. The one
in the wheel is used, else one that was compiled into the user's cache, else one that is compiled
there now, where there is a compiler. Where none of these is to be had, :func:`load` says so, and
the caller has its own way in Python.
"""
