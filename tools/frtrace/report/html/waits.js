function waitsSection() {}
