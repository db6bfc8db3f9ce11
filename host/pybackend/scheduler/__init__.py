"""Schedulers choose the order of requests and the instances that execute them."""
