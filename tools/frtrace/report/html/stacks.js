function stacksSection() {}
